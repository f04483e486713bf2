/**
 * Every way a call can fail or end, in words for the person who made it: what happened, and what they can do.
 * Codes are the page's own, the gateway's error codes, and the causes a call ends with.
 */

/**
 * @typedef {"ok" | "info" | "warn" | "bad"} Tone
 * @typedef {{tone: Tone, title: string, text: string}} Message
 */

/** `{when}` is when the gateway asks to be called again. @type {Record<string, [Tone, string, string]>} */
const MESSAGES = {
  // --- before the call ---
  insecure_context: [
    "bad",
    "This page needs a secure address",
    "Browsers allow the microphone only over https, or on the gateway's own machine. Open the page by its https:// address.",
  ],
  not_supported: [
    "bad",
    "This browser cannot make calls",
    "It has no WebRTC, or it is switched off. A current Chrome, Edge, Firefox or Safari can.",
  ],
  microphone_denied: [
    "bad",
    "The microphone is not allowed",
    "Allow it for this site: the lock or microphone symbol beside the address. On a phone or a Mac, the system's privacy settings can forbid it too.",
  ],
  microphone_dismissed: [
    "warn",
    "The microphone was not allowed yet",
    "The call needs it. Call again, and answer your browser's question with Allow.",
  ],
  no_microphone: ["bad", "No microphone was found", "Connect one, or switch it on, then call again."],
  microphone_busy: [
    "bad",
    "The microphone cannot be opened",
    "Another program may be using it, or the system blocks it. Close the other program, then call again.",
  ],

  // --- the gateway says no ---
  gateway_unreachable: [
    "bad",
    "The gateway does not answer",
    "Check your network. If other pages load, the gateway may be down: try again in a minute.",
  ],
  busy: ["warn", "All lines are busy", "As many calls are up as the gateway can take. Try again {when}."],
  draining: ["warn", "The line is closing", "The gateway is about to restart and takes no new calls. Try again {when}."],
  overloaded: ["warn", "The line is overloaded", "One more call would make the others worse. Try again {when}."],
  engines_down: ["bad", "Nobody can answer now", "A part of the gateway that hears or speaks is down. Try again {when}."],
  warming: ["info", "The gateway is starting", "Its models are loading; it takes a few seconds more."],
  missing_api_key: ["warn", "An access key is needed", "Sign in with the key you were given."],
  invalid_api_key: ["bad", "The access key was not accepted", "It may have been changed. Sign in again."],
  rate_limited: ["warn", "Too many attempts", "The gateway takes no more of them for a while. Try again {when}."],
  origin_not_allowed: [
    "bad",
    "This address may not call",
    "The gateway does not know the address this page was opened by. Its operator can add it to allowed_origins.",
  ],
  host_not_allowed: [
    "bad",
    "This host name is not known",
    "Open the page by the gateway's own address. Its operator can add this one to allowed_origins.",
  ],
  unknown_agent: ["bad", "There is no such agent", "It may have been renamed. Choose another one."],
  refused: ["bad", "The gateway refused the call", "Try again. If it happens again, tell the operator."],

  // --- connecting, and the line itself ---
  no_route: [
    "bad",
    "No audio path to the gateway",
    "The gateway answered, but no sound gets through. A firewall or VPN may block it: try another network.",
  ],
  connection_lost: ["bad", "The connection was lost", "The network went away for too long."],
  media_timeout: ["bad", "The line went dead", "For ten seconds no sound from you reached the gateway."],
  peer_not_reading: ["bad", "The connection was too slow", "The gateway could not get its messages through to this page."],
  microphone_lost: ["bad", "The microphone was disconnected", "Connect it again or choose another one."],

  // --- the end ---
  caller_hung_up: ["ok", "Call ended", "You hung up."],
  agent_hung_up: ["ok", "Call ended", "The agent ended the call."],
  operator_hung_up: ["info", "Call ended", "An operator ended the call."],
  server_drain: ["info", "Call ended", "The gateway is restarting. You can call again in a moment."],
  server_stop: ["info", "Call ended", "The gateway was stopped."],
  max_duration: ["info", "Call ended", "It reached the longest time a call may last."],
  internal_error: ["bad", "The call broke off", "Something went wrong in the gateway. You can call again."],
  ended_by_server: ["info", "Call ended", "The gateway ended the call."],

  // --- while it lasts ---
  network_offline: ["warn", "You are offline", "The call goes on as soon as the network is back, if that is soon."],
  reconnecting: ["warn", "The connection is interrupted", "Trying to get it back…"],
  microphone_interrupted: [
    "warn",
    "Your microphone is interrupted",
    "The system has silenced it: another call, an alarm, or this page is in the background. Nobody hears you now.",
  ],
  microphone_silent: [
    "warn",
    "No sound comes from your microphone",
    "It may be switched off on the device itself, or it is the wrong one: see Audio settings.",
  ],
  microphone_switched: ["info", "Another microphone is used now", "The one you had was disconnected."],
  sound_blocked: ["warn", "The browser keeps the sound off", "Press any key, or tap anywhere, to hear the agent."],
  speaker_failed: ["warn", "That speaker cannot be used", "The sound stays where it was."],
  device_failed: ["warn", "That microphone cannot be used", "The call goes on with the one before."],
};

/** The gateway's names for things that are one to a person. @type {Record<string, string>} */
const ALIASES = {
  ephemeral_token_already_used: "refused",
  ephemeral_token_expired: "refused",
  invalid_client_secret: "refused",
  key_out_of_scope: "invalid_api_key",
  too_many_attempts: "rate_limited",
  too_many_client_secrets: "overloaded",
  too_many_unconnected: "busy",
  engine_failed: "engines_down",
  no_media_port: "busy",
  answer_timeout: "refused",
  never_connected: "no_route",
  media_not_connected: "no_route",
  peer_closed: "connection_lost",
  protocol_error: "connection_lost",
  peer_flooding: "ended_by_server",
};

/**
 * @param {string} code
 * @param {{retryAfterS?: number}} [more] how long the gateway asks to wait
 * @returns {Message}
 */
export function messageOf(code, more = {}) {
  const known = MESSAGES[code] ?? MESSAGES[ALIASES[code] ?? ""];
  const [tone, title, text] = known ?? ["bad", "The call failed", `The gateway said: ${code}.`];
  return { tone, title, text: text.replace("{when}", more.retryAfterS ? `in ${waiting(more.retryAfterS)}` : "in a minute") };
}

/** @param {number} seconds */
function waiting(seconds) {
  const [number, unit] = seconds < 90 ? [Math.ceil(seconds), "second"] : [Math.ceil(seconds / 60), "minute"];
  return `${number} ${unit}${number === 1 ? "" : "s"}`;
}

/**
 * Why `getUserMedia` failed.
 * @param {unknown} error
 * @returns {string} a code of {@link messageOf}
 */
export function microphoneFailure(error) {
  const name = error instanceof Error ? error.name : "";
  switch (name) {
    case "NotAllowedError":
      return /dismissed/i.test(/** @type {Error} */ (error).message) ? "microphone_dismissed" : "microphone_denied";
    case "SecurityError":
      return "microphone_denied";
    case "NotFoundError":
    case "OverconstrainedError":
      return "no_microphone";
    case "NotReadableError":
    case "AbortError":
      return "microphone_busy";
    default:
      return "not_supported";
  }
}
