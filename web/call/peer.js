/** One WebRTC connection to the gateway: the microphone out, the agent's voice in, events on a data channel. */

/**
 * @typedef {object} PeerListener
 * @property {() => void} connected sound and events both flow
 * @property {(troubled: boolean) => void} troubled the network went away; it came back
 * @property {(reason: string) => void} lost `no_route` before it was connected, `connection_lost` or `ended_by_server` after
 * @property {(event: any) => void} event one server event
 * @property {(stream: MediaStream) => void} voice the agent's
 */

const GATHER_MS = 1_500;
const CONNECT_MS = 15_000;
const TROUBLED_MS = 8_000;
const CHANNEL = "oai-events";

export class Peer {
  /** @param {RTCIceServer[]} iceServers @param {MediaStreamTrack} microphone @param {PeerListener} listener */
  constructor(iceServers, microphone, listener) {
    this.listener = listener;
    this.connected = false;
    this.closed = false;
    /** @type {Map<string, ReturnType<typeof setTimeout>>} */
    this.timers = new Map();
    this.listening = new AbortController();
    const once = { signal: this.listening.signal };

    this.connection = new RTCPeerConnection({ iceServers });
    this.sender = this.connection.addTrack(microphone, new MediaStream([microphone]));
    this.channel = this.connection.createDataChannel(CHANNEL);
    this.connection.addEventListener("connectionstatechange", () => this.#moved(), once);
    this.connection.addEventListener(
      "track",
      ({ track, streams }) => listener.voice(streams[0] ?? new MediaStream([track])),
      once,
    );
    this.channel.addEventListener("open", () => this.#moved(), once);
    this.channel.addEventListener("message", ({ data }) => this.#heard(data), once);
    this.channel.addEventListener("close", () => this.#lose("ended_by_server"), once);
  }

  /** The offer with its candidates: there is no trickling to the gateway, it takes one offer. */
  async offer() {
    await this.connection.setLocalDescription();
    await this.#gathered();
    return this.connection.localDescription?.sdp ?? "";
  }

  /** @param {string} answer SDP */
  async accept(answer) {
    await this.connection.setRemoteDescription({ type: "answer", sdp: answer });
    if (!this.connected) this.#later("connect", CONNECT_MS, () => this.#lose("no_route"));
  }

  /** @param {object} event a client event @returns {boolean} whether it went out */
  send(event) {
    if (this.channel.readyState !== "open") return false;
    this.channel.send(JSON.stringify(event));
    return true;
  }

  /** @param {MediaStreamTrack} microphone */
  async useMicrophone(microphone) {
    await this.sender.replaceTrack(microphone);
  }

  close() {
    if (this.closed) return;
    this.closed = true;
    this.listening.abort();
    for (const timer of this.timers.values()) clearTimeout(timer);
    this.timers.clear();
    this.channel.close();
    this.connection.close();
  }

  #gathered() {
    const connection = this.connection;
    if (connection.iceGatheringState === "complete") return Promise.resolve();
    return new Promise((resolve) => {
      const done = () => resolve(undefined);
      // A STUN server that does not answer must not hold up the call: the gateway learns a late candidate by its checks.
      this.#later("gather", GATHER_MS, done);
      this.listening.signal.addEventListener("abort", done, { once: true });
      connection.addEventListener(
        "icegatheringstatechange",
        () => {
          if (connection.iceGatheringState === "complete") done();
        },
        { signal: this.listening.signal },
      );
    });
  }

  #moved() {
    if (this.closed) return;
    const state = this.connection.connectionState;
    if (state === "failed" || state === "closed") return this.#lose(this.connected ? "connection_lost" : "no_route");
    if (state === "connected" && this.channel.readyState === "open" && !this.connected) {
      this.connected = true;
      this.#cancel("connect");
      this.listener.connected();
    }
    if (!this.connected) return;
    if (state === "disconnected") {
      this.#later("troubled", TROUBLED_MS, () => this.#lose("connection_lost"));
      this.listener.troubled(true);
    } else if (state === "connected" && this.#cancel("troubled")) {
      this.listener.troubled(false);
    }
  }

  /** @param {unknown} data */
  #heard(data) {
    let event;
    try {
      event = JSON.parse(String(data));
    } catch {
      return;
    }
    if (typeof event?.type === "string") this.listener.event(event);
  }

  /** @param {string} reason */
  #lose(reason) {
    if (this.closed) return;
    this.close();
    this.listener.lost(reason);
  }

  /** @param {string} name @param {number} ms @param {() => void} then */
  #later(name, ms, then) {
    this.#cancel(name);
    this.timers.set(name, setTimeout(then, ms));
  }

  /** @param {string} name @returns {boolean} whether it was running */
  #cancel(name) {
    clearTimeout(this.timers.get(name));
    return this.timers.delete(name);
  }
}
