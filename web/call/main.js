/** The call page: puts its parts together and passes on what people do. */

import { wantsKey } from "../asking.js";
import { recall, remember } from "../storage.js";
import { Call } from "./call.js";
import { Devices } from "./devices.js";
import { byId, element, setText } from "./dom.js";
import { Keypad } from "./keypad.js";
import { accessKey, comeIn, setAccessKey } from "./login.js";
import { messageOf } from "./messages.js";
import { Meters } from "./meters.js";
import { whyNoCalls } from "./microphone.js";
import { PhoneView } from "./phone_view.js";
import { watchQuality } from "./quality.js";
import { showQuality } from "./quality_view.js";
import { IDLE, isLive, nextPhase, nextState } from "./states.js";
import { showPhase, TranscriptView } from "./transcript_view.js";
import { WaterfallView } from "./waterfall_view.js";

/** @typedef {import("./gateway.js").Agent} Agent */

const PARAMETERS = new URLSearchParams(location.search);
const RETRY_MS = 3_000;

const voice = /** @type {HTMLAudioElement} */ (byId("voice"));
const agentSelect = /** @type {HTMLSelectElement} */ (byId("agent"));
const phone = new PhoneView();
const transcript = new TranscriptView({
  list: byId("turns"),
  scroller: byId("scroller"),
  empty: byId("conversation-empty"),
  spoken: byId("spoken"),
});
const waterfall = new WaterfallView({
  list: byId("waterfall"),
  empty: byId("latency-empty"),
  summary: byId("latency-summary"),
});
const readings = [...document.querySelectorAll("[data-reading]")].map((node) => /** @type {HTMLElement} */ (node));
const quality = {
  word: byId("quality-word"),
  cells: Object.fromEntries(readings.map((cell) => [cell.dataset.reading ?? "", cell])),
};

/** @type {Agent[]} */
let agents = [];
/** @type {Call | null} */
let call = null;
/** @type {Meters | null} */
let meters = null;
/** @type {import("./states.js").CallState} */
let state = IDLE;
/** @type {import("./states.js").Phase} */
let phase = "listening";

const devices = new Devices(
  {
    microphone: { field: byId("microphone-field"), select: /** @type {HTMLSelectElement} */ (byId("microphone")) },
    speaker: { field: byId("speaker-field"), select: /** @type {HTMLSelectElement} */ (byId("speaker")) },
    hint: byId("devices-hint"),
  },
  voice,
  {
    microphone: async (id) => {
      phone.notice("device_failed", false);
      const changed = (await call?.changeMicrophone(id)) ?? true;
      phone.notice("device_failed", !changed);
    },
    speakerFailed: () => phone.notice("speaker_failed", true),
  },
);

const keypad = new Keypad({ keys: byId("keys"), dialled: byId("dialled") }, (digit) =>
  call?.dial(digit) ? call.audio : null,
);

/** @param {import("./states.js").CallEvent} event @param {{retryAfterS?: number}} [more] */
function move(event, more) {
  const before = state;
  state = nextState(state, event);
  if (state === before) return;
  if (state.name === "in-call") showPhase(byId("phase"), phase);
  if (state.name === "ended") tidy();
  phone.show(state, { turns: transcript.turns, ...more });
  if (state.name === "ended" && wantsKey(state.reason)) enter();
}

function placeCall() {
  if (isLive(state)) return;
  const agent = chosen();
  if (!agent) return;
  transcript.clear(displayName(agent));
  waterfall.clear();
  keypad.clear();
  phase = "listening";
  const raw = PARAMETERS.get("raw") === "1";
  const options = { agent: agent.name, key: accessKey(), microphoneId: devices.microphoneId, raw };
  const placed = new Call(options, {
    moved: (event, more) => placed === call && move(event, more),
    event: (event) => hear(event),
    notice: (code, on) => phone.notice(code, on),
    microphone: (track) => showMicrophone(placed, track),
    voice: (stream) => play(placed, stream),
  });
  call = placed;
  const { signal } = placed.over;
  if (placed.audio) {
    meters = new Meters(placed.audio, (silent) => phone.notice("microphone_silent", silent));
    signal.addEventListener("abort", () => meters?.stop(), { once: true });
  }
  document.addEventListener("keydown", shortcut, { signal });
  placed.start();
}

/** @param {Call} of @param {MediaStreamTrack} track */
function showMicrophone(of, track) {
  devices.refresh();
  if (of.audio) meters?.watch("microphone", new MediaStream([track]), byId("meter-you"));
}

/** @param {Call} of @param {MediaStream} stream */
async function play(of, stream) {
  voice.srcObject = stream;
  if (of.audio) meters?.watch("voice", stream, byId("meter-agent"), byId("avatar"));
  if (of.peer) watchQuality(of.peer.connection, (reading) => showQuality(quality, reading), of.over.signal);
  await devices.restoreSpeaker();
  try {
    await voice.play();
  } catch {
    if (of.isOver) return;
    phone.notice("sound_blocked", true);
    const again = () => voice.play().then(() => phone.notice("sound_blocked", false), () => {});
    document.addEventListener("pointerdown", again, { signal: of.over.signal });
    document.addEventListener("keydown", again, { signal: of.over.signal });
  }
}

/** Nothing of a call is left in the page but what was said. */
function tidy() {
  voice.srcObject = null;
  meters = null;
  showQuality(quality, null);
}

/** @param {any} event a server event */
function hear(event) {
  transcript.apply(event);
  if (event.type === "offhook.turn") waterfall.add(event.turn);
  phase = nextPhase(phase, event);
  if (state.name === "in-call") showPhase(byId("phase"), phase);
}

function toggleMute() {
  if (!call || state.name !== "in-call") return;
  call.mute(!call.muted);
  meters?.expectSilence(call.muted);
  phone.showMuted(call.muted);
}

/** @param {KeyboardEvent} event */
function shortcut(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || state.name !== "in-call") return;
  if (event.target instanceof Element && event.target.closest("input:not([type=checkbox]), select, textarea")) return;
  if (event.key === "Escape" && phone.keypadIsOpen) {
    phone.openKeypad(false);
    byId("keypad-button").focus();
  } else if (/** @type {HTMLInputElement} */ (byId("shortcuts")).checked && !event.repeat) {
    if (event.key.toLowerCase() === "m") toggleMute();
    else keypad.press(event.key);
  }
}

/** @param {Agent} agent */
function displayName(agent) {
  const words = agent.name === "default" ? "Default agent" : agent.name.replace(/[-_]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function chosen() {
  return agents.find(({ name }) => name === agentSelect.value) ?? agents[0];
}

function showChosen() {
  const agent = chosen();
  if (!agent) return;
  phone.showAgent(displayName(agent), agent.greeting, agents.length);
  phone.show(state, { turns: transcript.turns });
}

/** @param {import("./gateway.js").Callable} found */
function ready(found) {
  agents = found.agents;
  setText(byId("gateway-notice"), found.notice);
  byId("gateway-notice").hidden = found.notice === "";
  const wanted = PARAMETERS.get("agent") ?? recall("agent");
  agentSelect.replaceChildren(...agents.map((agent) => element("option", { value: agent.name }, displayName(agent))));
  if (agents.some(({ name }) => name === wanted)) agentSelect.value = wanted ?? "";
  byId("login").hidden = true;
  byId("phone").hidden = byId("extras").hidden = false;
  byId("sign-out").hidden = accessKey() === null;
  phone.clearNotices();
  showChosen();
  const hopeless = whyNoCalls();
  if (hopeless) phone.notice(hopeless, true);
}

/** Come in, or keep trying while the gateway starts. */
function enter() {
  comeIn({
    done: ready,
    open: () => {
      stayOutside("login");
    },
    failed: (refusal) => {
      const { title, text } = messageOf(refusal.code, refusal);
      stayOutside("waiting");
      byId("waiting-title").textContent = title;
      byId("waiting-text").textContent = text;
      const mayPass = refusal.status === 0 || refusal.status === 429 || refusal.status >= 500;
      byId("spinner").hidden = byId("waiting-on").hidden = !mayPass;
      if (mayPass) setTimeout(enter, Math.max(RETRY_MS, refusal.retryAfterS * 1000));
    },
  }).finally(() => {
    if (phone.stage.dataset.state !== "waiting") byId("waiting").hidden = true;
  });
}

/** @param {"login" | "waiting"} card what stands there instead of the phone */
function stayOutside(card) {
  phone.stage.dataset.state = card;
  phone.stage.classList.remove("wide");
  for (const id of ["login", "waiting", "phone", "talk", "extras", "sign-out", "skip"]) byId(id).hidden = id !== card;
}

/** @param {string} id @param {(on: boolean) => void} [then] a choice that is remembered */
function remembered(id, then) {
  const box = /** @type {HTMLInputElement} */ (byId(id));
  box.checked = recall(id) !== "off";
  then?.(box.checked);
  box.addEventListener("change", () => {
    remember(id, box.checked ? "on" : "off");
    then?.(box.checked);
  });
}

byId("call").addEventListener("click", placeCall);
byId("hang-up").addEventListener("click", () => call?.end("caller_hung_up"));
byId("mute").addEventListener("click", toggleMute);
byId("keypad-button").addEventListener("click", () => phone.openKeypad(!phone.keypadIsOpen));
// A key held down must not call and hang up in turn.
document.addEventListener("keydown", (event) => {
  if (event.repeat && event.target instanceof HTMLButtonElement) event.preventDefault();
});
agentSelect.addEventListener("change", () => {
  remember("agent", agentSelect.value);
  showChosen();
});
byId("sign-out").addEventListener("click", () => {
  call?.end("caller_hung_up");
  setAccessKey(null);
  state = IDLE;
  transcript.clear();
  waterfall.clear();
  enter();
});
remembered("shortcuts");
remembered("announce", (on) => (transcript.announce = on));
enter();
