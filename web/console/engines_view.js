/** How the engines are: who does each stage, where, and how busy it is there. */

import { element, setText } from "../call/dom.js";
import { laneName } from "./figures_view.js";
import { backendOf, memory, milliseconds, OVERLOADS, percent, STAGES } from "./words.js";

/** @typedef {import("./board.js").Board} Board */

export class EnginesView {
  /** @param {{body: HTMLElement, overload: HTMLElement}} places */
  constructor(places) {
    this.places = places;
    this.key = "";
    this.lanes = element("ul", { class: "lanes" });
    this.backends = element("div");
    this.hosts = element("div");
    this.lanesTitle = element("h3", {}, "Lanes");
    places.body.append(this.lanesTitle, this.lanes, this.backends, this.hosts);
  }

  /** @param {Board} board */
  draw(board) {
    const { engines, server, points } = board;
    if (!engines) return;
    setText(this.places.overload, OVERLOADS[server.overload] ?? String(server.overload));
    this.places.overload.className = `count tone ${["ok", "warn", "warn", "bad"][server.overload] ?? "bad"}`;
    this.#drawLanes(points.at(-1)?.lanes ?? {});
    const key = JSON.stringify(engines);
    if (key === this.key) return;
    this.key = key;
    this.backends.replaceChildren(
      ...(engines.backends.length ? [element("h3", {}, "Backends"), backends(engines.backends)] : []),
    );
    this.hosts.replaceChildren(...(engines.hosts.length ? [element("h3", {}, "Hosts"), hosts(engines.hosts)] : []));
  }

  /** @param {Record<string, any>} lanes */
  #drawLanes(lanes) {
    const names = Object.keys(lanes);
    this.lanesTitle.hidden = names.length === 0;
    if (this.lanes.dataset.names !== names.join()) {
      this.lanes.dataset.names = names.join();
      this.lanes.replaceChildren(...names.map(lane));
    }
    names.forEach((name, index) => {
      const { busy, waiting, running, late_ms: late, slots, overload } = lanes[name];
      const node = this.lanes.children[index];
      const meter = /** @type {HTMLMeterElement} */ (node.querySelector("meter"));
      meter.value = busy ?? 0;
      setText(/** @type {Element} */ (node.querySelector(".busy")), percent(busy));
      const level = overload ? ` · ${OVERLOADS[overload]}` : "";
      const behind = waiting && late > 0 ? `, ${milliseconds(late)} late` : "";
      const text = `${running} of ${slots} running · ${waiting} waiting${behind}${level}`;
      setText(/** @type {Element} */ (node.querySelector(".note")), text);
    });
  }
}

/** @param {string} name */
function lane(name) {
  const meter = element("meter", { min: "0", max: "1", high: "0.85", "aria-label": `${laneName(name)} in use` });
  return element(
    "li",
    {},
    element("span", { class: "name" }, laneName(name)),
    meter,
    element("span", { class: "busy numbers" }),
    element("span", { class: "note muted numbers" }),
  );
}

/** @param {any[]} list */
function backends(list) {
  return table(
    ["Stage", "Backend", "State", "Runs in"],
    list.map((backend) => {
      const [tone, text] = backendOf(backend.state);
      const failed = backend.failed ? [element("small", { class: "muted" }, ` ${backend.failed} failed`)] : [];
      return [
        /** @type {Record<string, string>} */ (STAGES)[backend.stage] ?? backend.stage,
        element("span", { class: "mono" }, backend.name),
        element("span", {}, element("span", { class: `tone ${tone}` }, text), ...failed),
        backend.host ? `${backend.host} host` : "gateway",
      ];
    }),
  );
}

/** @param {any[]} list */
function hosts(list) {
  return table(
    ["Host", "State", "Process", "Restarts", "Memory", "Waiting"],
    list.map((host) => [
      host.name,
      element("span", { class: `tone ${host.up ? "ok" : "bad"}`, title: host.reason }, host.up ? "up" : "down"),
      host.pid === null ? "–" : String(host.pid),
      String(host.restarts),
      host.device_mb ? `${memory(host.memory_mb)} + ${memory(host.device_mb)} device` : memory(host.memory_mb),
      String(host.waiting),
    ]),
  );
}

/** @param {string[]} heads @param {(string | Node)[][]} rows */
function table(heads, rows) {
  return element(
    "div",
    { class: "table" },
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))))),
    ),
  );
}
