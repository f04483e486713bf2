/**
 * The states of a call, and what moves it from one to the next. Nothing here touches the page or the network.
 *
 *     idle --call--> asking --microphone--> connecting --connected--> in-call --over--> ended --call--> asking
 *
 * A call can be over from anywhere but idle; what comes late (an answer after the hang-up) changes nothing.
 */

/**
 * @typedef {{name: "idle"}
 *   | {name: "asking"}
 *   | {name: "connecting"}
 *   | {name: "in-call", since: number}
 *   | {name: "ended", reason: string, lasted: number | null}} CallState
 *   `since` and `lasted` are milliseconds, of the same clock as the events' `at`.
 * @typedef {{type: "call"} | {type: "microphone"} | {type: "connected", at: number}
 *   | {type: "over", reason: string, at: number}} CallEvent
 */

/** @type {CallState} */
export const IDLE = Object.freeze({ name: "idle" });

/**
 * @param {CallState} state
 * @param {CallEvent} event
 * @returns {CallState} the same object where the event means nothing (any more)
 */
export function nextState(state, event) {
  switch (event.type) {
    case "call":
      return state.name === "idle" || state.name === "ended" ? { name: "asking" } : state;
    case "microphone":
      return state.name === "asking" ? { name: "connecting" } : state;
    case "connected":
      return state.name === "connecting" ? { name: "in-call", since: event.at } : state;
    case "over":
      return isLive(state) ? { name: "ended", reason: event.reason, lasted: lasted(state, event.at) } : state;
  }
}

/** Whether there is something to hang up. @param {CallState} state */
export function isLive(state) {
  return state.name === "asking" || state.name === "connecting" || state.name === "in-call";
}

/** @param {CallState} state @param {number} at */
function lasted(state, at) {
  return state.name === "in-call" ? at - state.since : null;
}

/**
 * What the two sides are doing, by the server's events.
 * @typedef {"listening" | "hearing" | "thinking" | "speaking"} Phase
 */

/**
 * @param {Phase} phase
 * @param {{type: string, response?: {status?: string}}} event a server event
 * @returns {Phase}
 */
export function nextPhase(phase, event) {
  switch (event.type) {
    case "input_audio_buffer.speech_started":
      return "hearing";
    case "input_audio_buffer.speech_stopped":
      return phase === "hearing" ? "thinking" : phase;
    case "input_audio_buffer.cleared":
      return phase === "speaking" ? phase : "listening";
    case "output_audio_buffer.started":
      return "speaking";
    case "output_audio_buffer.stopped":
    case "output_audio_buffer.cleared":
      return phase === "speaking" ? "listening" : phase;
    case "response.created":
      return phase === "listening" ? "thinking" : phase;
    case "response.done":
      // A response that failed or was empty never spoke; one that is spoken goes on after it is done.
      return phase === "thinking" && event.response?.status !== "completed" ? "listening" : phase;
    default:
      return phase;
  }
}
