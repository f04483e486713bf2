/** The twelve keys of a phone. A key makes the tone that phones make, here only: the gateway is told by an event. */

import { element, setText } from "./dom.js";

const KEYS = ["1", "2 ABC", "3 DEF", "4 GHI", "5 JKL", "6 MNO", "7 PQRS", "8 TUV", "9 WXYZ", "*", "0 +", "#"];
const NAMES = /** @type {Record<string, string>} */ ({ "*": "star", "#": "pound" });

/** ITU-T Q.23: a key's row and column. */
const ROWS_HZ = [697, 770, 852, 941];
const COLUMNS_HZ = [1209, 1336, 1477];
const TONE_S = 0.12;
const EDGE_S = 0.01;
const VOLUME = 0.06;
const SHOWN = 20;
const LIT_MS = 150;

export class Keypad {
  /**
   * @param {{keys: HTMLElement, dialled: HTMLElement}} places
   * @param {(digit: string) => AudioContext | null} dial sends it; null where it cannot be sent now
   */
  constructor(places, dial) {
    this.dial = dial;
    this.dialled = places.dialled;
    /** @type {Map<string, HTMLButtonElement>} */
    this.buttons = new Map();
    for (const key of KEYS) {
      const [digit, letters = ""] = key.split(" ");
      const button = element(
        "button",
        { type: "button", class: "key", ...(digit in NAMES && { "aria-label": NAMES[digit] }) },
        element("span", { class: "digit" }, digit),
        " ",
        element("span", { class: "letters" }, letters),
      );
      button.addEventListener("click", () => this.press(digit));
      this.buttons.set(digit, button);
      places.keys.append(button);
    }
  }

  /** @param {string} digit @returns {boolean} whether there is such a key */
  press(digit) {
    const button = this.buttons.get(digit);
    if (!button) return false;
    const context = this.dial(digit);
    if (context) {
      setText(this.dialled, ((this.dialled.textContent ?? "") + digit).slice(-SHOWN));
      sound(context, tonesOf(digit));
      button.classList.add("lit");
      setTimeout(() => button.classList.remove("lit"), LIT_MS);
    }
    return true;
  }

  clear() {
    setText(this.dialled, "");
  }
}

/** @param {string} digit @returns {[number, number]} in Hz */
export function tonesOf(digit) {
  const at = KEYS.findIndex((key) => key[0] === digit);
  return [ROWS_HZ[Math.floor(at / 3)], COLUMNS_HZ[at % 3]];
}

/** @param {AudioContext} context @param {number[]} tones in Hz */
function sound(context, tones) {
  const volume = new GainNode(context, { gain: 0 });
  volume.connect(context.destination);
  const start = context.currentTime;
  volume.gain.setValueAtTime(0, start);
  volume.gain.linearRampToValueAtTime(VOLUME, start + EDGE_S);
  volume.gain.setValueAtTime(VOLUME, start + TONE_S - EDGE_S);
  volume.gain.linearRampToValueAtTime(0, start + TONE_S);
  tones.forEach((frequency, index) => {
    const tone = new OscillatorNode(context, { frequency });
    tone.connect(volume);
    tone.start(start);
    tone.stop(start + TONE_S);
    if (index === 0) tone.addEventListener("ended", () => volume.disconnect(), { once: true });
  });
}
