/**
 * One call from the press of the button to its end. It owns all that a call opens (microphone, connection, audio
 * context, listeners, timers), and closes all of it in one place, {@link Call#end}. It shows nothing.
 */

import { Refusal } from "../asking.js";
import { askSecret, hangUp, placeCall } from "./gateway.js";
import { keepAwake, NoMicrophone, openMicrophone, whyNoCalls } from "./microphone.js";
import { Peer } from "./peer.js";

/**
 * @typedef {object} CallOptions
 * @property {string} agent
 * @property {string | null} key
 * @property {string | null} microphoneId
 * @property {boolean} raw
 *
 * @typedef {object} CallListener
 * @property {(event: import("./states.js").CallEvent, more?: {retryAfterS?: number}) => void} moved
 * @property {(event: any) => void} event a server event
 * @property {(code: string, on: boolean) => void} notice something the caller should know, until it is off
 * @property {(track: MediaStreamTrack) => void} microphone opened, or another one
 * @property {(stream: MediaStream) => void} voice the agent's
 */

export class Call {
  /** @param {CallOptions} options @param {CallListener} listener */
  constructor(options, listener) {
    this.options = options;
    this.listener = listener;
    this.over = new AbortController();
    /** @type {MediaStreamTrack | null} */
    this.microphone = null;
    /** @type {Peer | null} */
    this.peer = null;
    /** @type {string | null} */
    this.id = null;
    this.secret = "";
    this.muted = false;
    /** @type {string | null} what the server said it ends the call for */
    this.cause = null;
    // Made in the click: elsewhere a browser may keep it silent.
    this.audio = whyNoCalls() === null ? new AudioContext({ latencyHint: "interactive" }) : null;
  }

  get isOver() {
    return this.over.signal.aborted;
  }

  /** Runs until the connection is being made; what comes then is told to the listener. */
  async start() {
    this.listener.moved({ type: "call" });
    const hopeless = whyNoCalls();
    if (hopeless) return this.end(hopeless);
    try {
      const track = await openMicrophone(this.options.microphoneId, this.options.raw);
      if (this.isOver) return track.stop();
      this.#take(track);
      this.listener.moved({ type: "microphone" });
      this.#watchPage();
      await this.#connect(track);
    } catch (error) {
      if (this.isOver) return;
      const known = error instanceof Refusal || error instanceof NoMicrophone;
      if (!known) console.error(error);
      this.end(known ? error.code : "refused", { retryAfterS: error instanceof Refusal ? error.retryAfterS : 0 });
    }
  }

  /** @param {MediaStreamTrack} track */
  async #connect(track) {
    const signal = this.over.signal;
    const secret = await askSecret(this.options.key, this.options.agent, signal);
    this.peer = new Peer(secret.iceServers, track, {
      connected: () => this.listener.moved({ type: "connected", at: performance.now() }),
      troubled: (on) => this.listener.notice("reconnecting", on),
      lost: (reason) => this.end(this.#because(reason)),
      event: (event) => this.#heard(event),
      voice: (stream) => this.listener.voice(stream),
    });
    const offer = await this.peer.offer();
    if (this.isOver) return;
    const { id, answer } = await placeCall(offer, secret.value, signal);
    this.id = id;
    this.secret = secret.value;
    if (this.isOver) return hangUp(id, secret.value);
    await this.peer.accept(answer);
  }

  /** @param {boolean} muted */
  mute(muted) {
    this.muted = muted;
    if (this.microphone) this.microphone.enabled = !muted;
  }

  /** @param {string} digits @returns {boolean} */
  dial(digits) {
    return this.peer?.send({ type: "offhook.dtmf", digits }) ?? false;
  }

  /** Use another microphone from now on. @param {string | null} deviceId @returns {Promise<boolean>} */
  async changeMicrophone(deviceId) {
    this.options.microphoneId = deviceId;
    if (!this.microphone) return true;
    try {
      const track = await openMicrophone(deviceId, this.options.raw);
      if (this.isOver) {
        track.stop();
        return true;
      }
      await this.peer?.useMicrophone(track);
      this.#take(track);
      this.listener.notice("microphone_lost", false);
      return true;
    } catch {
      return false;
    }
  }

  /**
   * End the call, whatever it is doing. The first reason stands.
   * @param {string} reason
   * @param {{retryAfterS?: number}} [more]
   */
  end(reason, more) {
    if (this.isOver) return;
    this.over.abort();
    const endedThere = reason === "ended_by_server" || this.cause !== null;
    if (this.id !== null && !endedThere) hangUp(this.id, this.secret);
    this.peer?.close();
    this.microphone?.stop();
    this.audio?.close().catch(() => {});
    this.listener.moved({ type: "over", reason, at: performance.now() }, more);
  }

  /** @param {MediaStreamTrack} track */
  #take(track) {
    this.microphone?.stop();
    this.microphone = track;
    track.enabled = !this.muted;
    const signal = this.over.signal;
    track.addEventListener("ended", () => this.#microphoneEnded(track), { signal });
    track.addEventListener("mute", () => this.listener.notice("microphone_interrupted", true), { signal });
    track.addEventListener("unmute", () => this.listener.notice("microphone_interrupted", false), { signal });
    this.listener.notice("microphone_interrupted", track.muted);
    this.listener.microphone(track);
  }

  /** It was unplugged, or taken away: go on with another one, if there is one. @param {MediaStreamTrack} track */
  async #microphoneEnded(track) {
    if (track !== this.microphone) return;
    const found = await this.changeMicrophone(null);
    if (!this.isOver) this.listener.notice(found ? "microphone_switched" : "microphone_lost", true);
  }

  #watchPage() {
    const signal = this.over.signal;
    window.addEventListener("pagehide", () => this.end("caller_hung_up"), { signal });
    window.addEventListener("offline", () => this.listener.notice("network_offline", true), { signal });
    window.addEventListener("online", () => this.listener.notice("network_offline", false), { signal });
    // A phone suspends the audio of a page in the background.
    document.addEventListener("visibilitychange", () => document.hidden || this.audio?.resume(), { signal });
    keepAwake(signal);
  }

  /** @param {any} event */
  #heard(event) {
    if (event.type === "offhook.call_ended") this.cause = String(event.cause ?? "ended_by_server");
    this.listener.event(event);
  }

  /** Why the connection went, as far as can be told. @param {string} reason */
  #because(reason) {
    // Somebody else hung up in the caller's name: had it been this page, the call would be over already.
    if (this.cause === "caller_hung_up") return "ended_by_server";
    if (this.cause !== null) return this.cause;
    return this.microphone?.readyState === "ended" ? "microphone_lost" : reason;
  }
}
