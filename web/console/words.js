/** The words for what the gateway has codes for, and how numbers are written. */

import { duration } from "../numbers.js";

/** @typedef {"ok" | "info" | "warn" | "bad"} Tone */

/** @type {Record<string, [Tone, string]>} */
const CAUSES = {
  caller_hung_up: ["ok", "Caller hung up"],
  hung_up: ["ok", "Hung up"],
  operator_hung_up: ["info", "Hung up by an operator"],
  server_drain: ["info", "Server drained"],
  server_stop: ["warn", "Server stopped"],
  max_duration: ["info", "Longest call reached"],
  connection_lost: ["warn", "Connection lost"],
  media_timeout: ["warn", "No audio came any more"],
  media_not_connected: ["warn", "Audio never connected"],
  peer_not_reading: ["warn", "Caller’s end did not read"],
  peer_flooding: ["warn", "Caller’s end sent too much"],
  protocol_error: ["warn", "Caller’s end broke the protocol"],
  internal_error: ["bad", "A defect in the gateway"],
};

/** @param {string | null} cause @returns {[Tone, string]} */
export const causeOf = (cause) => CAUSES[cause ?? ""] ?? ["info", sentence(cause ?? "unknown")];

/** @type {Record<string, [Tone, string]>} */
const STATUSES = {
  ready: ["ok", "Taking calls"],
  draining: ["warn", "Draining"],
  unwell: ["bad", "Not ready"],
  overloaded: ["bad", "Overloaded"],
};

/** @param {any} server @returns {[Tone, string]} */
export function statusOf(server) {
  if (server.stage === "farewell") return ["warn", "Saying goodbye"];
  if (server.stage === "ending") return ["warn", "Hanging up"];
  if (server.status === "ready" && server.live >= server.limit) return ["warn", "Every line is taken"];
  return STATUSES[server.status] ?? ["info", sentence(server.status)];
}

/** @type {Record<string, string>} */
const LIMITS = {
  engines: "The engines answer too late.",
  loop_lag: "The gateway comes too late to what is due.",
  late_frames: "Too many frames of the agents’ voices leave late.",
  lane_late: "Jobs wait too long for an engine.",
  lane_use: "An engine has no time left.",
};

/** A title and what is known of it; both empty while nothing is wrong. @param {any} server @returns {[string, string]} */
export function troubleOf(server) {
  if (server.status === "overloaded") {
    return ["New calls are refused", LIMITS[server.reason] ?? sentence(server.reason)];
  }
  return server.reason ? ["The engines are not well", server.reason] : ["", ""];
}

/** @type {Record<string, [Tone, string]>} */
const BACKENDS = {
  up: ["ok", "up"],
  loading: ["info", "loading"],
  standing_by: ["info", "standing by"],
  paused: ["warn", "failed, tried again soon"],
  down: ["bad", "down"],
};

/** @param {string} state @returns {[Tone, string]} */
export const backendOf = (state) => BACKENDS[state] ?? ["info", state];

export const STAGES = { vad: "Voice activity", turn: "End of turn", stt: "Hearing", llm: "Thinking", tts: "Speaking" };

/** What the gateway does about each level of overload. */
export const OVERLOADS = ["No overload", "Overload 1: no speculation", "Overload 2: shorter first clauses", "Overload 3: calls refused"];

/** `connection_lost` is "Connection lost". @param {string} code */
export function sentence(code) {
  const words = code.replace(/_/g, " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** @param {any} summary */
export const agentOf = (summary) => summary.agent ?? "no agent";

/** @type {Record<string, string>} */
const PHASES = {
  hearing: "Caller speaks",
  held: "Caller cuts in",
  thinking: "Thinking",
  speaking: "Agent speaks",
  waiting: "Listening",
};

/** What a live call does. @param {any} summary */
export function phaseOf(summary) {
  if (summary.state === "ringing") return "Ringing";
  if (summary.state === "dialling") return "Dialling";
  return PHASES[summary.phase] ?? sentence(summary.phase ?? "answered");
}

/** @type {Record<string, string>} */
const TRANSPORTS = { websocket: "WebSocket", webrtc: "WebRTC", sip: "SIP" };

/** @param {string} transport */
export const transportOf = (transport) => TRANSPORTS[transport] ?? transport;

/** The time of day, and the day if it was another. @param {string} iso @param {number} now */
export function moment(iso, now) {
  const at = new Date(iso);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const today = at.toDateString() === new Date(now).toDateString();
  return today ? time : `${at.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}

/** @param {number | null | undefined} ms */
export const milliseconds = (ms) => (ms === null || ms === undefined ? "–" : duration(ms));

/** @param {number | null | undefined} share */
export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`);

/** @param {number} mb */
export const memory = (mb) => (mb >= 1024 ? `${(mb / 1024).toFixed(1)} GB` : `${mb} MB`);
