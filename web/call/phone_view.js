/** The card with the button: what it shows in each state of a call, and the notices in it. */

import { clock } from "../numbers.js";
import { byId, element, icon, setIcon, setText } from "./dom.js";
import { messageOf } from "./messages.js";
import { showPhase } from "./transcript_view.js";

/** @typedef {import("./states.js").CallState} CallState */

const STATUS = {
  idle: "Ready to call",
  asking: "Asking for the microphone…",
  connecting: "Connecting…",
  "in-call": "In call",
};
const TICK_MS = 250;
const NARROW = matchMedia("(max-width: 59.99rem)");

export class PhoneView {
  constructor() {
    this.stage = byId("stage");
    this.notices = byId("notices");
    /** @type {Map<string, HTMLElement>} */
    this.shown = new Map();
    this.ticking = 0;
    NARROW.addEventListener("change", () => this.#slim());
    this.agents = 0;
    this.greeting = "";
  }

  /** @param {string} name @param {string} greeting @param {number} count how many agents there are to choose from */
  showAgent(name, greeting, count) {
    this.agents = count;
    this.greeting = greeting;
    setText(byId("agent-name"), name);
    setText(byId("initial"), [...name][0]?.toUpperCase() ?? "");
    setText(byId("meter-agent-label"), "Agent");
    setText(byId("greeting"), greeting);
  }

  /**
   * @param {CallState} state
   * @param {{turns: number, retryAfterS?: number}} more
   */
  show(state, more) {
    const [live, inCall] = [["asking", "connecting", "in-call"].includes(state.name), state.name === "in-call"];
    const hadFocus = document.activeElement;
    this.stage.dataset.state = state.name;
    byId("call").hidden = live;
    byId("hang-up").hidden = !live;
    byId("mute").hidden = byId("keypad-button").hidden = !inCall;
    byId("meters").hidden = !inCall;
    byId("agent-field").hidden = live || this.agents < 2;
    byId("greeting").hidden = state.name !== "idle" || this.greeting === "";
    byId("quality").hidden = !inCall;
    byId("talk").hidden = !inCall && more.turns === 0;
    byId("skip").hidden = byId("talk").hidden;
    this.stage.classList.toggle("wide", !byId("talk").hidden);
    setText(byId("hang-up-label"), inCall ? "Hang up" : "Cancel");
    if (!inCall) {
      showPhase(byId("phase"), null);
      this.showMuted(false);
      this.openKeypad(false);
    }
    this.#slim();
    this.#time(state);
    if (state.name === "ended") this.#showEnd(state, more);
    else this.#showProgress(state.name);
    const lostFocus = hadFocus instanceof HTMLElement && hadFocus.closest("[hidden]");
    if (lostFocus) byId(live ? "hang-up" : "call").focus();
  }

  /** @param {"idle" | "asking" | "connecting" | "in-call"} name */
  #showProgress(name) {
    document.title = name === "in-call" ? `In call · ${byId("agent-name").textContent}` : "Offhook · Call";
    setText(byId("status"), STATUS[name]);
    setText(byId("call-label"), "Call");
    if (name === "asking") this.clearNotices();
    this.stage.dataset.tone = "";
  }

  /** @param {Extract<CallState, {name: "ended"}>} state @param {{turns: number, retryAfterS?: number}} more */
  #showEnd(state, more) {
    document.title = "Offhook · Call";
    const message = messageOf(state.reason, more);
    const failed = message.tone === "bad" || message.tone === "warn";
    this.clearNotices();
    this.stage.dataset.tone = message.tone;
    setText(byId("call-label"), failed ? "Try again" : "Call again");
    if (failed) {
      setText(byId("status"), state.lasted === null ? "Not connected" : "Call ended");
      this.#put(state.reason, message);
    } else {
      setText(byId("status"), `${message.title}. ${message.text}`);
    }
  }

  /** @param {CallState} state */
  #time(state) {
    clearInterval(this.ticking);
    const timer = byId("timer");
    timer.hidden = !(state.name === "in-call" || (state.name === "ended" && state.lasted !== null));
    if (state.name === "ended") setText(timer, clock(state.lasted ?? 0));
    if (state.name !== "in-call") return;
    const tick = () => setText(timer, clock(performance.now() - state.since));
    tick();
    this.ticking = setInterval(tick, TICK_MS);
  }

  /** Something the caller should know, until it is over. @param {string} code @param {boolean} on */
  notice(code, on) {
    if (!on) {
      this.shown.get(code)?.remove();
      this.shown.delete(code);
    } else if (!this.shown.has(code)) {
      this.#put(code, messageOf(code));
    }
  }

  /** @param {string} code @param {import("./messages.js").Message} message */
  #put(code, { tone, title, text }) {
    const words = element("div", {}, element("strong", {}, title), text);
    const sign = icon(tone === "info" || tone === "ok" ? "info" : "alert");
    const node = element("div", { class: `notice ${tone}`, "data-code": code }, sign, words);
    this.shown.set(code, node);
    this.notices.append(node);
  }

  clearNotices() {
    this.shown.clear();
    this.notices.replaceChildren();
  }

  /** @param {boolean} muted */
  showMuted(muted) {
    const button = byId("mute");
    button.setAttribute("aria-pressed", String(muted));
    setIcon(byId("mute-icon"), muted ? "mic-off" : "mic");
    byId("muted").hidden = !muted;
  }

  /** @param {boolean} open */
  openKeypad(open) {
    byId("keypad").hidden = !open;
    this.#slim();
    byId("keypad-button").setAttribute("aria-expanded", String(open));
  }

  /** A small header, where the room is needed for what is said or for the keypad. */
  #slim() {
    const { state } = this.stage.dataset;
    const talks = state === "in-call" || this.stage.classList.contains("wide");
    byId("phone").classList.toggle("slim", this.keypadIsOpen || (NARROW.matches && talks));
  }

  get keypadIsOpen() {
    return !byId("keypad").hidden;
  }
}
