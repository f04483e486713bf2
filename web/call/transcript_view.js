/** Shows a transcript: each turn as it grows, what the caller did not hear of it struck through. */

import { element, icon, setText } from "./dom.js";
import { pieces, Transcript } from "./transcript.js";

/** @typedef {import("./transcript.js").Entry} Entry */

/** How far from the end the reader may be and still be taken along. */
const NEAR_END_PX = 80;
const MOST_ANNOUNCED = 5;

export class TranscriptView {
  /**
   * @param {{list: HTMLElement, scroller: HTMLElement, empty: HTMLElement, spoken: HTMLElement}} places
   *   `spoken` is the live region: it gets whole turns, not every word as it comes
   */
  constructor(places) {
    this.places = places;
    this.announce = true;
    this.agent = "Agent";
    /** Whether the reader is at the end, and so is taken along. */
    this.following = true;
    places.scroller.addEventListener("scroll", () => (this.following = this.#isAtEnd()), { passive: true });
    new ResizeObserver(() => this.following && this.#toEnd()).observe(places.scroller);
    this.transcript = new Transcript();
    /** @type {Map<string, HTMLElement>} */
    this.nodes = new Map();
    /** The lines of the live region: a cut is told by more than one event. @type {Map<string, HTMLElement>} */
    this.announced = new Map();
    /** Entries to be drawn with the next frame: words come faster than they can be seen. @type {Set<string>} */
    this.changed = new Set();
    this.frame = 0;
  }

  /** @param {string} [agent] who speaks from now on */
  clear(agent = this.agent) {
    this.agent = agent;
    this.transcript = new Transcript();
    this.nodes = new Map();
    this.announced = new Map();
    this.changed.clear();
    this.places.list.replaceChildren();
    this.places.spoken.replaceChildren();
    this.places.empty.hidden = false;
    this.following = true;
  }

  /** @param {any} event a server event */
  apply(event) {
    const id = this.transcript.apply(event);
    if (id === null) return;
    this.changed.add(id);
    this.frame ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.frame = 0;
    const { entries } = this.transcript;
    for (const id of this.changed) {
      const entry = entries.get(id);
      if (entry && isShown(entry)) this.#show(entry);
    }
    this.changed.clear();
    for (const [id, node] of this.nodes) {
      if (entries.has(id)) continue;
      node.remove();
      this.nodes.delete(id);
    }
    this.places.empty.hidden = this.nodes.size > 0;
    if (this.following) this.#toEnd();
  }

  /** @param {Entry} entry */
  #show(entry) {
    const before = this.nodes.get(entry.id);
    const node = this.#render(entry);
    if (before) before.replaceWith(node);
    else this.#place(entry.id, node);
    this.nodes.set(entry.id, node);
    this.#speak(entry);
  }

  /**
   * The order is that of the entries: a turn may show its first word after the answer began.
   * @param {string} id
   * @param {HTMLElement} node
   */
  #place(id, node) {
    const ids = [...this.transcript.entries.keys()];
    const next = ids.slice(ids.indexOf(id) + 1).find((later) => this.nodes.has(later));
    this.places.list.insertBefore(node, (next && this.nodes.get(next)) || null);
  }

  /** @param {Entry} entry @returns {HTMLElement} */
  #render(entry) {
    const own = entry.role === "user";
    const who = own ? "You" : this.agent;
    const text = element("p", { class: "said", dir: "auto" });
    if (entry.keys) text.append(icon("keypad"));
    pieces(entry).forEach((piece, index) => {
      if (index > 0) text.append(" ");
      text.append(piece.heard ? piece.text : element("s", { class: "unheard" }, piece.text));
    });
    if (entry.status === "listening") text.append(dots());
    if (entry.status === "failed" && !entry.text) text.append(element("em", {}, "This could not be understood."));
    const node = element("li", { class: `turn ${own ? "you" : "agent"} ${entry.status}`, "data-item": entry.id });
    node.append(element("p", { class: "who" }, who), text);
    if (entry.status === "cut") {
      const all = pieces(entry).some((piece) => piece.heard);
      node.append(element("p", { class: "note" }, all ? "You cut in here; the rest was not heard" : "Cut before it was heard"));
    }
    return node;
  }

  /** @param {Entry} entry */
  #speak(entry) {
    if (!this.announce || !["final", "done", "cut"].includes(entry.status)) return;
    const heard = pieces(entry).filter((piece) => piece.heard);
    const text = heard.map((piece) => piece.text).join(" ");
    if (text === "") return;
    const who = entry.role === "user" ? "You" : this.agent;
    const line = this.announced.get(entry.id) ?? element("p", {});
    setText(line, `${who}: ${text}${entry.status === "cut" ? " (you cut in)" : ""}`);
    if (this.announced.has(entry.id)) return;
    this.announced.set(entry.id, line);
    this.places.spoken.append(line);
    for (const [id, old] of this.announced) {
      if (this.announced.size <= MOST_ANNOUNCED) break;
      old.remove();
      this.announced.delete(id);
    }
  }

  #isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.places.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  #toEnd() {
    this.places.scroller.scrollTop = this.places.scroller.scrollHeight;
  }

  get turns() {
    return [...this.transcript.entries.values()].filter(isShown).length;
  }
}

/** Speech that may hold no words yet is shown as listening; an answer without a word is not. @param {Entry} entry */
function isShown(entry) {
  return entry.role === "user" || entry.text !== "" || entry.status === "cut";
}

function dots() {
  const mark = element("span", { class: "dots" }, element("span"), element("span"), element("span"));
  mark.setAttribute("role", "img");
  mark.setAttribute("aria-label", "speaking");
  return mark;
}

/** @param {HTMLElement} node @param {import("./states.js").Phase | null} phase */
export function showPhase(node, phase) {
  const names = { listening: "Listening", hearing: "Hearing you", thinking: "Thinking", speaking: "Speaking" };
  node.hidden = phase === null;
  if (phase === null) return;
  node.dataset.phase = phase;
  setText(node, names[phase]);
}
