/**
 * The stream of server-sent events, read by fetch: EventSource cannot send a key. It comes back by itself, and lets go
 * of its place while nobody looks at the page.
 */

import { Refusal, wantsKey } from "../asking.js";
import { ask } from "./gateway.js";

const SILENT_MS = 15_000;
const HIDDEN_MS = 60_000;
const FIRST_RETRY_MS = 1_000;
const LAST_RETRY_MS = 15_000;
/** Once the server has drained: it stops, and whoever runs it may start it again. */
const AFTER_END_MS = 5_000;

/**
 * @typedef {object} Listener
 * @property {(event: string, told: any) => void} told
 * @property {(link: "connecting" | "live" | "lost" | "paused", refusal: Refusal | null) => void} link
 * @property {(refusal: Refusal) => void} refused another key is needed; {@link Stream.open} begins anew
 */

export class Stream {
  /** @param {Listener} listener */
  constructor(listener) {
    this.listener = listener;
    /** @type {AbortController | null} */
    this.reading = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.retryMs = FIRST_RETRY_MS;
    this.wanted = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.hiding = undefined;
    document.addEventListener("visibilitychange", () => this.#visibility());
  }

  open() {
    this.wanted = true;
    this.retryMs = FIRST_RETRY_MS;
    this.#connect();
  }

  close() {
    this.wanted = false;
    this.#stop();
  }

  #stop() {
    clearTimeout(this.timer);
    this.reading?.abort();
    this.reading = null;
  }

  #visibility() {
    if (!this.wanted) return;
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        this.#stop();
        this.listener.link("paused", null);
      }, HIDDEN_MS);
    } else if (this.reading === null) {
      this.#connect();
    }
  }

  /** What cannot be shown must not end the stream, to begin it anew for ever. @param {string} event @param {string} data */
  #tell(event, data) {
    try {
      this.listener.told(event, JSON.parse(data));
    } catch (error) {
      reportError(error);
    }
  }

  async #connect() {
    this.#stop();
    const reading = (this.reading = new AbortController());
    this.listener.link("connecting", null);
    try {
      const response = await ask("events", { signal: reading.signal });
      if (!response.body) throw new Refusal("gateway_unreachable", 0);
      this.retryMs = FIRST_RETRY_MS;
      this.listener.link("live", null);
      for await (const { event, data } of events(response.body, reading)) {
        if (this.reading !== reading) return;
        if (event === "end") this.retryMs = AFTER_END_MS;
        this.#tell(event, data);
      }
      throw new Refusal("gateway_unreachable", 0);
    } catch (error) {
      if (this.reading !== reading) return;
      this.reading = null;
      if (error instanceof Refusal && wantsKey(error.code)) {
        this.wanted = false;
        return this.listener.refused(error);
      }
      const refusal = error instanceof Refusal ? error : new Refusal("gateway_unreachable", 0);
      this.listener.link("lost", refusal);
      const wait = Math.max(this.retryMs, refusal.retryAfterS * 1000);
      this.retryMs = Math.min(LAST_RETRY_MS, this.retryMs * 2);
      this.timer = setTimeout(() => this.#connect(), wait);
    }
  }
}

/**
 * @param {ReadableStream<Uint8Array>} body
 * @param {AbortController} reading aborted when nothing came for too long: the server sends comments at least
 * @returns {AsyncGenerator<{event: string, data: string}>}
 */
async function* events(body, reading) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const watchdog = setTimeout(() => reading.abort(), SILENT_MS);
    const { value, done } = await reader.read().finally(() => clearTimeout(watchdog));
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const fields = parse(block);
      if (fields.data) yield fields;
    }
  }
}

/** One event, of the fields that our server sends. @param {string} block */
export function parse(block) {
  const fields = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) fields.event = line.slice(7);
    else if (line.startsWith("data: ")) fields.data += line.slice(6);
  }
  return fields;
}
