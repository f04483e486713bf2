/** Draws the latency of each turn: the latest opened, the earlier ones folded to a line, all on one scale. */

import { duration } from "../numbers.js";
import { element, setText } from "./dom.js";
import { Turns } from "./waterfall.js";

/** @typedef {import("./waterfall.js").Row} Row */

export class WaterfallView {
  /** @param {{list: HTMLElement, empty: HTMLElement, summary: HTMLElement}} places */
  constructor(places) {
    this.places = places;
    this.turns = new Turns();
    /** @type {Map<string, boolean>} what a person opened or closed themselves */
    this.chosen = new Map();
    this.#draw();
  }

  clear() {
    this.turns = new Turns();
    this.chosen.clear();
    this.#draw();
  }

  /** @param {import("./waterfall.js").TurnTimes} times */
  add(times) {
    this.turns.add(times);
    this.#draw();
  }

  #draw() {
    const { scale, ticks, rows } = this.turns.layout();
    const shown = rows.filter((row) => row.bars.length > 0);
    const focused = document.activeElement?.closest("[data-turn]")?.getAttribute("data-turn");
    this.places.list.replaceChildren(...shown.map((row, index) => this.#row(row, ticks, scale, index === 0)));
    const again = shown.find((row) => row.id === focused);
    if (again) /** @type {HTMLElement} */ (this.places.list.querySelector(`[data-turn="${CSS.escape(again.id)}"] summary`)).focus();
    this.places.empty.hidden = shown.length > 0;
    const median = this.turns.median();
    setText(this.places.summary, median === null ? "" : `median ${duration(median)}`);
    this.places.summary.hidden = median === null;
  }

  /** @param {Row} row @param {number[]} ticks @param {number} scale @param {boolean} latest */
  #row(row, ticks, scale, latest) {
    const total = row.total === null ? "no answer" : duration(row.total);
    const summary = element(
      "summary",
      {},
      element("span", { class: "name" }, `Turn ${row.number}`),
      element("span", { class: "line", "aria-hidden": "true" }, ...line(row)),
      element("span", { class: "note" }, notesOf(row)),
      element("span", { class: "total numbers" }, total),
    );
    const stages = element("div", { class: "stages" });
    for (const bar of row.bars) stages.append(...stage(bar));
    stages.append(axis(ticks, scale));
    const turn = element("details", { class: "turn-times", "data-turn": row.id }, summary, stages);
    turn.open = this.chosen.get(row.id) ?? latest;
    summary.addEventListener("click", () => this.chosen.set(row.id, !turn.open));
    return element("li", {}, turn);
  }
}

/** @param {Row} row */
function notesOf(row) {
  const notes = [];
  if (row.speculative) notes.push("prepared before the turn was surely over");
  if (row.cut !== null) notes.push(`silent ${duration(row.cut)} after you cut in`);
  return notes.join("; ");
}

/** A folded turn: how far each stage came, on one line. @param {Row} row */
function line(row) {
  let done = 0;
  const parts = [];
  for (const bar of [...row.bars].sort((a, b) => a.left + a.width - (b.left + b.width))) {
    const end = bar.left + bar.width;
    parts.push(placed(element("span", { class: `bar-of ${bar.stage}` }), done, end - done));
    done = end;
  }
  return parts;
}

/** @param {import("./waterfall.js").Bar} bar */
function stage(bar) {
  const track = element("div", { class: "track", "aria-hidden": "true" });
  track.append(placed(element("span", { class: `bar-of ${bar.stage}` }), bar.left, bar.width));
  return [
    element("span", { class: "label" }, bar.label),
    track,
    element("span", { class: "at numbers" }, duration(bar.to)),
  ];
}

/** @param {number[]} ticks @param {number} scale */
function axis(ticks, scale) {
  const marks = element("div", { class: "axis numbers", "aria-hidden": "true" });
  for (const tick of ticks) {
    const mark = element("span", {}, tick === 0 ? "0" : duration(tick));
    mark.style.left = `${(tick / scale) * 100}%`;
    marks.append(mark);
  }
  return marks;
}

/** @param {HTMLElement} node @param {number} left @param {number} width shares of the scale */
function placed(node, left, width) {
  node.style.left = `${left * 100}%`;
  node.style.width = `${width * 100}%`;
  return node;
}
