/** A small line plot over the last ten minutes, as SVG of our own. */

import { element, setText } from "../call/dom.js";

const SVG = "http://www.w3.org/2000/svg";
const SPAN_MS = 600_000;
const HEIGHT = 84;
const TOP = 14;
const BOTTOM = 66;

/**
 * @typedef {{name: string, tone: string, values: (number | null)[]}} Series `tone` is a class of console.css
 * @typedef {object} Shown
 * @property {number[]} at milliseconds, of each value
 * @property {Series[]} series
 * @property {number} least the scale reaches at least so far
 * @property {number} [limit] a line to be told apart
 * @property {(value: number | null) => string} say
 */

/** @param {string} tag @param {Record<string, string | number>} attributes */
function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

export class Plot {
  /** @param {string} title what is drawn, for who cannot see it */
  constructor(title) {
    this.title = title;
    this.root = svg("svg", { class: "plot", role: "img", height: HEIGHT });
    this.legend = element("p", { class: "legend numbers" });
    this.node = element("div", { class: "plot-of" }, this.root, this.legend);
    /** @type {Shown | null} */
    this.shown = null;
    /** @type {number | null} where somebody points, as a share of the width */
    this.pointed = null;
    this.width = 300;
    new ResizeObserver(([entry]) => {
      this.width = Math.max(120, Math.round(entry.contentRect.width));
      this.#draw();
    }).observe(this.node);
    this.root.addEventListener("pointermove", (event) => this.#point(event.offsetX / this.width));
    this.root.addEventListener("pointerleave", () => this.#point(null));
  }

  /** @param {Shown} shown */
  show(shown) {
    this.shown = shown;
    this.#draw();
  }

  /** @param {number | null} share */
  #point(share) {
    this.pointed = share;
    this.#draw();
  }

  #draw() {
    const shown = this.shown;
    if (!shown) return;
    const end = shown.at.at(-1) ?? Date.now();
    const known = shown.series.flatMap(({ values }) => values).filter((value) => value !== null);
    const top = nice(Math.max(shown.least, shown.limit ?? 0, ...known));
    const x = (/** @type {number} */ at) => ((at - end + SPAN_MS) / SPAN_MS) * this.width;
    const y = (/** @type {number} */ value) => BOTTOM - (value / top) * (BOTTOM - TOP);

    const parts = [
      svg("line", { class: "grid", x1: 0, x2: this.width, y1: BOTTOM, y2: BOTTOM }),
      svg("line", { class: "grid", x1: 0, x2: this.width, y1: TOP, y2: TOP }),
      label(0, TOP - 4, shown.say(top), "start"),
      label(0, HEIGHT - 4, "10 min ago", "start"),
      label(this.width, HEIGHT - 4, "now", "end"),
    ];
    if (shown.limit !== undefined) {
      parts.push(svg("line", { class: "limit", x1: 0, x2: this.width, y1: y(shown.limit), y2: y(shown.limit) }));
    }
    for (const series of shown.series) {
      parts.push(svg("path", { class: `curve ${series.tone}`, d: path(shown.at.map(x), series.values, y) }));
    }
    const index = this.pointed === null ? -1 : nearest(shown.at, end - SPAN_MS + this.pointed * SPAN_MS);
    if (index >= 0) {
      const at = x(shown.at[index]);
      parts.push(svg("line", { class: "pointer", x1: at, x2: at, y1: TOP, y2: BOTTOM }));
    }
    this.root.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.root.setAttribute("aria-label", summary(this.title, shown));
    this.root.replaceChildren(...parts);
    this.#drawLegend(shown, index, end);
  }

  /** @param {Shown} shown @param {number} index @param {number} end */
  #drawLegend(shown, index, end) {
    const at = index >= 0 ? index : shown.at.length - 1;
    const texts = shown.series.map(({ name, values }) => `${name} ${shown.say(values[at] ?? null)}`);
    const ago = index >= 0 ? `${Math.round((end - shown.at[index]) / 1000)} s ago` : "";
    const key = shown.series.map(({ tone }) => tone).join();
    if (this.legend.dataset.key !== key) {
      this.legend.dataset.key = key;
      const entries = shown.series.map(({ tone }) =>
        element("span", { class: "entry" }, element("i", { class: `key ${tone}`, "aria-hidden": "true" }), element("span")),
      );
      this.legend.replaceChildren(...entries, element("span", { class: "ago" }));
    }
    texts.forEach((text, number) => setText(/** @type {Element} */ (this.legend.children[number].lastChild), text));
    setText(/** @type {Element} */ (this.legend.lastChild), ago);
  }
}

/** @param {number} x @param {number} y @param {string} text @param {string} anchor */
function label(x, y, text, anchor) {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

/** Steps between values, gaps where there are none. @param {number[]} xs @param {(number | null)[]} values @param {(value: number) => number} y */
function path(xs, values, y) {
  let drawn = "";
  let down = false;
  values.forEach((value, index) => {
    if (value !== null && value !== undefined) {
      drawn += `${down ? "L" : "M"}${xs[index].toFixed(1)} ${y(value).toFixed(1)}`;
      // A point with no neighbour is a dot.
      if (!down && (values[index + 1] ?? null) === null) drawn += "h0.01";
    }
    down = value !== null && value !== undefined;
  });
  return drawn;
}

/** @param {number[]} ats @param {number} wanted */
function nearest(ats, wanted) {
  let best = -1;
  ats.forEach((at, index) => {
    if (best < 0 || Math.abs(at - wanted) < Math.abs(ats[best] - wanted)) best = index;
  });
  return best;
}

/** The next round number. @param {number} value */
export function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 4, 5, 8, 10].map((factor) => factor * power).find((round) => round >= value * 0.9999) ?? 10 * power;
}

/** @param {string} title @param {Shown} shown */
function summary(title, shown) {
  const told = shown.series.map(({ name, values }) => {
    const known = values.filter((value) => value !== null);
    if (known.length === 0) return `${name}: nothing yet`;
    return `${name}: ${shown.say(values.at(-1) ?? null)} now, at most ${shown.say(Math.max(...known))}`;
  });
  return `${title} over the last ten minutes. ${told.join("; ")}.`;
}
