/** The calls that are up, and those that ended: a line each, which opens. */

import { element, icon, setText } from "../call/dom.js";
import { clock } from "../numbers.js";
import { agentOf, causeOf, moment, phaseOf, transportOf } from "./words.js";

/**
 * @typedef {import("./board.js").Board} Board
 * @typedef {import("./board.js").Call} Call
 * @typedef {{open: (id: string) => void, hangUp: (id: string) => void}} Asked
 */

/** Lines by id, each made once: a line that was made anew would lose the focus. */
class Rows {
  /** @param {HTMLElement} list */
  constructor(list) {
    this.list = list;
    /** @type {Map<string, HTMLElement>} */
    this.nodes = new Map();
  }

  /** @param {string[]} ids in their order @param {(id: string) => HTMLElement} make */
  keep(ids, make) {
    const wanted = new Set(ids);
    for (const [id, node] of this.nodes) {
      if (wanted.has(id)) continue;
      node.remove();
      this.nodes.delete(id);
    }
    ids.forEach((id, index) => {
      const node = this.nodes.get(id) ?? make(id);
      this.nodes.set(id, node);
      if (this.list.children[index] !== node) this.list.insertBefore(node, this.list.children[index] ?? null);
    });
  }

  /** @param {string} id @param {string} field @param {string} text */
  say(id, field, text) {
    const node = this.nodes.get(id)?.querySelector(`[data-of="${field}"]`);
    if (node) setText(node, text);
  }

  /** @param {string | null} openId */
  mark(openId) {
    for (const [id, node] of this.nodes) {
      node.querySelector(".line")?.setAttribute("aria-expanded", String(id === openId));
    }
  }

  /** @param {string} id */
  focus(id) {
    /** @type {HTMLElement | null | undefined} */ (this.nodes.get(id)?.querySelector(".line"))?.focus();
  }
}

/** @param {string} field @param {string} [more] */
const cell = (field, more = "") => element("span", { class: `${field} ${more}`, "data-of": field });

export class LiveView {
  /** @param {{list: HTMLElement, empty: HTMLElement, count: HTMLElement}} places @param {Asked} asked */
  constructor(places, asked) {
    this.places = places;
    this.asked = asked;
    this.rows = new Rows(places.list);
  }

  /** @param {Board} board */
  draw(board) {
    const calls = board.live;
    this.rows.keep(calls.map(({ id }) => id), (id) => this.#line(id));
    for (const call of calls) this.#fill(call, board);
    this.rows.mark(board.openId);
    setText(this.places.count, String(calls.length));
    this.places.empty.hidden = calls.length > 0;
  }

  /** @param {string} id */
  #line(id) {
    const line = element(
      "button",
      { class: "line live", type: "button", "aria-controls": "detail" },
      cell("phase"),
      cell("agent"),
      cell("age", "numbers"),
      cell("words"),
      cell("facts", "muted"),
    );
    line.addEventListener("click", () => this.asked.open(id));
    const hangUp = element("button", { class: "button quiet small stop", type: "button" }, icon("hang-up"));
    hangUp.append(element("span", { class: "visually-hidden" }, `Hang up ${id}`));
    hangUp.title = "Hang up";
    hangUp.addEventListener("click", () => this.asked.hangUp(id));
    return element("li", { "data-call": id }, line, hangUp);
  }

  /** @param {Call} call @param {Board} board */
  #fill(call, board) {
    const { id, summary } = call;
    const node = this.rows.nodes.get(id)?.querySelector(".phase");
    node?.setAttribute("data-phase", ["dialling", "ringing"].includes(summary.state) ? "ringing" : (summary.phase ?? ""));
    this.rows.say(id, "phase", phaseOf(summary));
    this.rows.say(id, "agent", agentOf(summary));
    this.rows.say(id, "age", clock(board.age(summary)));
    this.rows.say(id, "words", lastWords(call));
    const turns = summary.turn_count === 1 ? "1 turn" : `${summary.turn_count} turns`;
    this.rows.say(id, "facts", `${transportOf(summary.transport)} · ${turns} · ${id}`);
  }
}

/** @param {Call} call */
function lastWords(call) {
  const said = call.partials.at(-1) ?? [...call.entries.values()].at(-1);
  if (!said) return "Nothing was said yet.";
  return `${said.role === "assistant" ? "Agent" : "Caller"}: ${said.text.slice(-200)}`;
}

export class RecentView {
  /** @param {{list: HTMLElement, empty: HTMLElement, more: HTMLElement}} places @param {Asked} asked */
  constructor(places, asked) {
    this.places = places;
    this.asked = asked;
    this.rows = new Rows(places.list);
    /** @type {any[]} */
    this.found = [];
  }

  /** @param {any[]} found @param {boolean} hasMore @param {string} query @param {string | null} openId */
  show(found, hasMore, query, openId) {
    this.found = found;
    this.rows.keep(found.map(({ id }) => id), (id) => this.#line(found.find((call) => call.id === id)));
    this.rows.mark(openId);
    this.places.more.hidden = !hasMore;
    this.places.empty.hidden = found.length > 0;
    setText(this.places.empty, query === "" ? "No call has ended yet." : `No ended call has “${query}” in it.`);
  }

  /** @param {any} call */
  #line(call) {
    const [tone, text] = causeOf(call.cause);
    const turns = call.turn_count === 1 ? "1 turn" : `${call.turn_count} turns`;
    const line = element(
      "button",
      { class: "line ended", type: "button", "aria-controls": "detail" },
      element("span", { class: "when numbers muted" }, moment(call.started_at, Date.now())),
      element("span", { class: "agent" }, agentOf(call)),
      element("span", { class: "age numbers" }, clock(call.ended_ms ?? 0)),
      element("span", { class: `cause tone ${tone}` }, text),
      element("span", { class: "facts muted" }, `${transportOf(call.transport)} · ${turns} · ${call.id}`),
    );
    line.addEventListener("click", () => this.asked.open(call.id));
    return element("li", { "data-call": call.id }, line);
  }
}
