/** One call opened: what was said as it is said, where the time of each answer went, how it ended. */

import { element, icon, setText } from "../call/dom.js";
import { STAGES, Turns } from "../call/waterfall.js";
import { clock } from "../numbers.js";
import { agentOf, causeOf, milliseconds, moment, phaseOf, sentence, transportOf } from "./words.js";

/**
 * @typedef {import("./board.js").Call} Call
 * @typedef {import("./board.js").Entry} Entry
 */

const NEAR_PX = 60;

export class CallView {
  /** @param {HTMLElement} place @param {{hangUp: (id: string) => void, close: () => void}} asked */
  constructor(place, asked) {
    this.place = place;
    this.title = element("h2", { id: "detail-title", tabindex: "-1" });
    this.state = element("span", { class: "tone" });
    this.age = element("span", { class: "numbers" });
    this.facts = element("dl", { class: "facts" });
    this.hangUp = element("button", { class: "button danger small", type: "button" }, icon("hang-up"), "Hang up");
    this.hangUp.addEventListener("click", () => this.id && asked.hangUp(this.id));
    const close = element("button", { class: "button quiet small", type: "button" }, icon("close"));
    close.append(element("span", { class: "visually-hidden" }, "Close the call’s record"));
    close.addEventListener("click", asked.close);
    this.lines = element("ol", { class: "said" });
    this.scroller = element("div", { class: "scroller", tabindex: "0", role: "group", "aria-label": "What was said" }, this.lines);
    this.noWords = element("p", { class: "empty muted" }, "Nothing was said yet.");
    this.turns = element("ol", { class: "turns" });
    this.noTurns = element("p", { class: "empty muted" }, "No answer was timed yet.");
    place.append(
      element("header", {}, this.title, element("span", { class: "buttons" }, this.hangUp, close)),
      element("p", { class: "now" }, this.state, this.age),
      this.facts,
      element("h3", {}, "What was said"),
      this.noWords,
      this.scroller,
      element("h3", {}, "Time to answer, turn by turn"),
      legend(),
      this.noTurns,
      this.turns,
    );
    /** @type {string | null} */
    this.id = null;
    /** @type {Map<string, {key: string, node: HTMLElement}>} */
    this.nodes = new Map();
    this.turnsKey = "";
    /** @type {Map<string, boolean>} turns that a person opened or closed */
    this.chosen = new Map();
  }

  /** @param {Call | null} call @param {number} ageMs */
  draw(call, ageMs) {
    this.place.hidden = call === null;
    if (call === null) {
      this.id = null;
      return;
    }
    const another = call.id !== this.id;
    if (another) this.#begin(call.id);
    const { summary } = call;
    const live = summary.state !== "ended";
    const [tone, text] = live ? ["ok", phaseOf(summary)] : causeOf(summary.cause);
    setText(this.title, agentOf(summary));
    setText(this.age, clock(ageMs));
    setText(this.state, text);
    this.state.className = `tone ${tone}`;
    this.hangUp.hidden = !live;
    this.#drawFacts(summary);
    this.#drawLines(call, another);
    this.#drawTurns(call);
  }

  focus() {
    this.title.focus({ preventScroll: true });
  }

  /** @param {string} id */
  #begin(id) {
    this.id = id;
    this.lines.replaceChildren();
    this.nodes.clear();
    this.turnsKey = "";
    this.chosen.clear();
  }

  /** @param {any} summary */
  #drawFacts(summary) {
    const facts = {
      Call: summary.id,
      "Came in by": transportOf(summary.transport),
      Began: moment(summary.started_at, Date.now()),
      Answered: summary.answered_ms === null ? "not yet" : `after ${milliseconds(summary.answered_ms)}`,
    };
    const key = JSON.stringify(facts);
    if (this.facts.dataset.key === key) return;
    this.facts.dataset.key = key;
    this.facts.replaceChildren(
      ...Object.entries(facts).map(([name, value]) =>
        element("div", {}, element("dt", {}, name), element("dd", { class: name === "Call" ? "mono" : "" }, value)),
      ),
    );
  }

  /** @param {Call} call @param {boolean} another */
  #drawLines(call, another) {
    const { scroller } = this;
    const atEnd = another || scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - NEAR_PX;
    /** @type {[Entry, boolean][]} */
    const said = [...call.entries.values()].map((entry) => [entry, false]);
    for (const partial of call.partials) if (!call.entries.has(partial.item_id)) said.push([partial, true]);
    const shown = new Set(said.map(([entry]) => entry.item_id));
    for (const [id, { node }] of this.nodes) {
      if (shown.has(id)) continue;
      node.remove();
      this.nodes.delete(id);
    }
    said.forEach(([entry, partial], index) => {
      const key = JSON.stringify([entry.text, entry.cut, entry.unheard, partial]);
      const known = this.nodes.get(entry.item_id);
      const node = known?.key === key ? known.node : line(entry, partial);
      if (known && known.node !== node) known.node.replaceWith(node);
      this.nodes.set(entry.item_id, { key, node });
      if (this.lines.children[index] !== node) this.lines.insertBefore(node, this.lines.children[index] ?? null);
    });
    this.scroller.hidden = said.length === 0;
    this.noWords.hidden = said.length > 0;
    if (atEnd) scroller.scrollTop = scroller.scrollHeight;
  }

  /** @param {Call} call */
  #drawTurns(call) {
    const key = JSON.stringify([...call.turns.values()]);
    if (key === this.turnsKey) return;
    this.turnsKey = key;
    const turns = new Turns();
    for (const times of call.turns.values()) turns.add(times);
    const { rows } = turns.layout();
    const focused = document.activeElement?.closest("[data-turn]")?.getAttribute("data-turn");
    const nodes = rows.map((row, index) => this.#turn(row, call.turns.get(row.id), index === 0));
    this.turns.replaceChildren(...nodes);
    const again = nodes.find((node) => node.dataset.turn === focused);
    again?.querySelector("summary")?.focus();
    this.noTurns.hidden = nodes.length > 0;
  }

  /** @param {import("../call/waterfall.js").Row} row @param {any} times @param {boolean} latest */
  #turn(row, times, latest) {
    const track = element("span", { class: "track", "aria-hidden": "true" });
    for (const [index, bar] of row.bars.entries()) {
      const node = element("span", { class: `bar-of ${bar.stage}` });
      node.style.left = `${bar.left * 100}%`;
      node.style.width = `${bar.width * 100}%`;
      node.style.top = `${index * 3}px`;
      track.append(node);
    }
    const summary = element(
      "summary",
      {},
      element("span", { class: "muted" }, `Turn ${row.number}`),
      track,
      element("span", { class: "numbers total" }, row.total === null ? "no answer" : milliseconds(row.total)),
    );
    const stages = element("dl", { class: "stages" });
    for (const bar of row.bars) stages.append(...pair(bar.label, milliseconds(bar.to), bar.stage));
    if (row.cut !== null) stages.append(...pair("Silent after the caller cut in", milliseconds(row.cut)));
    stages.append(...pair("Tokens", `${times.prompt_tokens} read, ${times.prefilled_tokens} anew; ${times.completion_tokens} written`));
    if (row.speculative) stages.append(...pair("Prepared", "before the turn was surely over"));
    const details = element("details", {}, summary, stages);
    details.open = this.chosen.get(row.id) ?? latest;
    summary.addEventListener("click", () => this.chosen.set(row.id, !details.open));
    return element("li", { "data-turn": row.id }, details);
  }
}

/** @param {string} name @param {string} value @param {string} [stage] */
function pair(name, value, stage) {
  const mark = stage ? [element("i", { class: `key ${stage}`, "aria-hidden": "true" })] : [];
  return [element("dt", {}, ...mark, name), element("dd", { class: "numbers" }, value)];
}

function legend() {
  const entries = Object.entries(STAGES).map(([stage, name]) =>
    element("span", { class: "entry" }, element("i", { class: `key ${stage}` }), name),
  );
  return element("p", { class: "legend", "aria-hidden": "true" }, ...entries);
}

/** @param {Entry} entry @param {boolean} partial */
function line(entry, partial) {
  const text = element("p", {}, entry.text);
  if (partial) text.append(element("span", { class: "muted" }, " …"));
  if (entry.unheard) {
    text.append(" ", element("s", {}, element("span", { class: "visually-hidden" }, "not heard: "), entry.unheard));
  }
  const who = entry.role === "assistant" ? "Agent" : entry.role === "user" ? "Caller" : sentence(entry.role);
  const note = entry.cut ? [element("span", { class: "note muted" }, "the caller cut in")] : [];
  return element(
    "li",
    { class: `${entry.role}${partial ? " partial" : ""}` },
    element("span", { class: "at numbers muted" }, clock(entry.at_ms)),
    element("span", { class: "who" }, who),
    element("div", {}, text, ...note),
  );
}
