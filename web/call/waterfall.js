/**
 * The latency of each turn as a waterfall: where its milliseconds went between the caller's last word and the first
 * packet of the answer. Pure; waterfall_view.js draws it.
 *
 * Every time is counted from the caller's last voiced sample. Work may start before the turn was decided to be over
 * (speculation), so the stages overlap: each bar starts where what it needs was there, not where the bar above ends.
 */

/**
 * @typedef {object} TurnTimes what an `offhook.turn` event tells; null where it did not happen
 * @property {string} response_id
 * @property {number} [utterance] 0 of an answer to no speech, a greeting: there is no last word to count from
 * @property {boolean} [speculative]
 * @property {number | null} [decision_ms]
 * @property {number | null} [final_ms]
 * @property {number | null} [first_token_ms]
 * @property {number | null} [first_audio_ms]
 * @property {number | null} [first_sent_ms]
 * @property {number | null} [cut_to_silence_ms]
 *
 * @typedef {"decision" | "final" | "token" | "audio" | "packet"} Stage
 * @typedef {{stage: Stage, label: string, from: number, to: number, left: number, width: number}} Bar
 *   `from` and `to` in milliseconds, `left` and `width` as shares (0..1) of the scale
 * @typedef {object} Row
 * @property {string} id
 * @property {number} number the turn's, from 1
 * @property {number | null} total milliseconds to the first packet
 * @property {boolean} speculative
 * @property {number | null} cut milliseconds from the caller's interruption to silence
 * @property {Bar[]} bars
 */

/** @type {Record<Stage, string>} */
export const STAGES = {
  decision: "End of turn",
  final: "Final transcript",
  token: "First token",
  audio: "First audio",
  packet: "First packet",
};

const MOST_TURNS = 50;
const LEAST_SCALE_MS = 500;

export class Turns {
  constructor() {
    /** @type {Map<string, {number: number, times: TurnTimes}>} */
    this.turns = new Map();
    this.count = 0;
  }

  /** A later record of the same response replaces the earlier one. @param {TurnTimes} times */
  add(times) {
    if (times.utterance === 0) return;
    const number = this.turns.get(times.response_id)?.number ?? (this.count += 1);
    this.turns.set(times.response_id, { number, times });
    if (this.turns.size > MOST_TURNS) {
      const [oldest] = this.turns.keys();
      this.turns.delete(oldest);
    }
  }

  /** Milliseconds to the first packet, of the turn in the middle. @returns {number | null} */
  median() {
    const totals = [...this.turns.values()].map((turn) => turn.times.first_sent_ms).filter(isTime);
    totals.sort((a, b) => a - b);
    const half = totals.length >> 1;
    if (totals.length === 0) return null;
    return totals.length % 2 ? totals[half] : (totals[half - 1] + totals[half]) / 2;
  }

  /**
   * Newest first, all on one scale.
   * @returns {{scale: number, ticks: number[], rows: Row[]}} scale and ticks in milliseconds
   */
  layout() {
    const turns = [...this.turns.values()].reverse();
    const longest = Math.max(LEAST_SCALE_MS, ...turns.map((turn) => Math.max(0, ...known(turn.times))));
    const step = tickStep(longest);
    const scale = Math.ceil(longest / step) * step;
    const ticks = Array.from({ length: Math.round(scale / step) + 1 }, (_, index) => index * step);
    return { scale, ticks, rows: turns.map((turn) => layoutRow(turn.number, turn.times, scale)) };
  }
}

/** @param {number} number @param {TurnTimes} times @param {number} scale @returns {Row} */
function layoutRow(number, times, scale) {
  const { decision_ms: decision, final_ms: final, first_token_ms: token } = times;
  const { first_audio_ms: audio, first_sent_ms: packet } = times;
  /** @type {[Stage, number | null | undefined, (number | null | undefined)[]][]} each with what it has to wait for */
  const stages = [
    ["decision", decision, []],
    ["final", final, [times.speculative ? null : decision]],
    ["token", token, [final, times.speculative ? null : decision]],
    ["audio", audio, [token]],
    ["packet", packet, [audio, decision]],
  ];
  /** @type {Bar[]} */
  const bars = [];
  for (const [stage, to, needs] of stages) {
    if (!isTime(to)) continue;
    const from = Math.max(0, ...needs.filter(isTime).filter((need) => need <= to));
    const end = Math.max(to, 0);
    bars.push({ stage, label: STAGES[stage], from, to: end, left: from / scale, width: (end - from) / scale });
  }
  return {
    id: times.response_id,
    number,
    total: isTime(packet) ? packet : null,
    speculative: times.speculative ?? false,
    cut: isTime(times.cut_to_silence_ms) ? times.cut_to_silence_ms : null,
    bars,
  };
}

/** @param {TurnTimes} times @returns {number[]} */
function known(times) {
  return [times.decision_ms, times.final_ms, times.first_token_ms, times.first_audio_ms, times.first_sent_ms].filter(isTime);
}

/** @param {unknown} value @returns {value is number} */
function isTime(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** At most five steps, each a round number. @param {number} longest */
function tickStep(longest) {
  const rough = longest / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough) ?? 10 * power;
}
