/** Shows the connection's quality: one word always, the numbers in a section that can be opened. */

import { setText } from "./dom.js";
import { verdict } from "./quality.js";

const WORDS = { good: "Good", fair: "Fair", poor: "Poor", unknown: "" };

/**
 * @param {{word: HTMLElement, cells: Record<string, HTMLElement>}} places cells by the name of the reading
 * @param {import("./quality.js").Reading | null} reading null: there is no connection
 */
export function showQuality(places, reading) {
  const judged = reading === null ? "unknown" : verdict(reading);
  places.word.hidden = judged === "unknown";
  places.word.dataset.verdict = judged;
  setText(places.word, WORDS[judged]);
  for (const [name, cell] of Object.entries(places.cells)) setText(cell, reading === null ? "–" : valueOf(reading, name));
}

/** @param {import("./quality.js").Reading} reading @param {string} name */
function valueOf(reading, name) {
  switch (name) {
    case "lossIn":
    case "lossOut":
    case "concealed":
      return percent(reading[name]);
    case "jitterMs":
    case "bufferMs":
    case "roundTripMs":
      return reading[name] === null ? "–" : `${Math.round(reading[name])} ms`;
    default:
      return reading[/** @type {"codec" | "path"} */ (name)] ?? "–";
  }
}

/** @param {number | null} part */
function percent(part) {
  return part === null ? "–" : `${(part * 100).toFixed(1)} %`;
}
