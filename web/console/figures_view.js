/** The figures on top: each a number, and how it went in the last ten minutes. */

import { element, setText } from "../call/dom.js";
import { Plot } from "./plot.js";
import { milliseconds, percent } from "./words.js";

/** @typedef {import("./board.js").Board} Board */

const TONES = ["one", "two", "three", "four"];

export class FiguresView {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.cards = {
      calls: new Figure("Calls", place),
      answer: new Figure("Time to answer", place),
      busy: new Figure("Lanes in use", place),
      waiting: new Figure("Jobs waiting", place),
    };
  }

  /** @param {Board} board */
  draw(board) {
    const { points, server } = board;
    const last = points.at(-1);
    const at = points.map((point) => point.at_ms);
    /** @param {(point: any) => number | null | undefined} of */
    const values = (of) => points.map((point) => of(point) ?? null);

    const { calls, answer, busy, waiting } = this.cards;
    calls.say(String(server.live), `of ${server.limit} lines`);
    calls.plot.show({
      at,
      series: [{ name: "calls", tone: "one", values: values((point) => point.live) }],
      least: 4,
      say: (value) => (value === null ? "–" : String(value)),
    });

    answer.say(milliseconds(last?.p50_ms), last?.p95_ms ? `95 % within ${milliseconds(last.p95_ms)}` : "no answer in the last minute");
    answer.plot.show({
      at,
      series: [
        { name: "p50", tone: "one", values: values((point) => point.p50_ms) },
        { name: "p95", tone: "two", values: values((point) => point.p95_ms) },
      ],
      least: 800,
      say: milliseconds,
    });

    const lanes = Object.keys(last?.lanes ?? {});
    /** @param {string} lane */
    const most = (lane) => last?.lanes[lane]?.busy ?? 0;
    const busiest = lanes.reduce((best, lane) => (best === "" || most(lane) > most(best) ? lane : best), "");
    busy.say(lanes.length ? percent(most(busiest)) : "–", lanes.length ? laneName(busiest) : "no lane in use");
    busy.plot.show({
      at,
      series: lanes.map((lane, index) => ({
        name: laneName(lane),
        tone: TONES[index % TONES.length],
        values: values((point) => point.lanes[lane]?.busy),
      })),
      least: 1,
      say: percent,
    });

    const sum = (/** @type {any} */ point) => Object.values(point.lanes).reduce((all, lane) => all + lane.waiting, 0);
    waiting.say(last ? String(sum(last)) : "–", `event loop lag ${milliseconds(last?.lag_ms)}`);
    waiting.plot.show({
      at,
      series: [{ name: "waiting", tone: "one", values: values(sum) }],
      least: 4,
      say: (value) => (value === null ? "–" : String(value)),
    });
  }
}

class Figure {
  /** @param {string} title @param {HTMLElement} place */
  constructor(title, place) {
    this.plot = new Plot(title);
    this.number = element("strong", { class: "number numbers" }, "–");
    this.note = element("span", { class: "muted note" });
    const head = element("p", { class: "head" }, this.number, this.note);
    place.append(element("article", { class: "card figure" }, element("h2", {}, title), head, this.plot.node));
  }

  /** @param {string} number @param {string} note */
  say(number, note) {
    setText(this.number, number);
    setText(this.note, note);
  }
}

/** `mlx/mlx` is the MLX executor of the mlx host. @param {string} lane */
export function laneName(lane) {
  const [host, name] = lane.split("/");
  const what = name === "mlx" ? "MLX executor" : name === "cpu" ? "CPU lane" : name;
  return host === "gateway" ? what : `${what}, ${host} host`;
}
