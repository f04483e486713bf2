/** How good the connection is, from the browser's own statistics: loss, jitter, round trip. */

/**
 * @typedef {object} Counters what was counted so far
 * @property {number} received
 * @property {number} receivedLost
 * @property {number} concealed samples
 * @property {number} samples
 *
 * @typedef {object} Reading null where the browser does not tell
 * @property {number | null} lossIn share of packets, 0..1, since the last reading
 * @property {number | null} lossOut as the gateway reports it
 * @property {number | null} concealed share of what was played, 0..1, since the last reading
 * @property {number | null} jitterMs
 * @property {number | null} bufferMs
 * @property {number | null} roundTripMs
 * @property {string | null} codec
 * @property {string | null} path
 *
 * @typedef {"good" | "fair" | "poor" | "unknown"} Verdict
 */

const EVERY_MS = 1_000;
const PATHS = /** @type {Record<string, string>} */ ({
  host: "direct",
  srflx: "direct, through NAT",
  prflx: "direct, through NAT",
  relay: "through a relay",
});

/**
 * @param {Iterable<any>} report the values of an RTCStatsReport
 * @param {Counters | null} before
 * @returns {{reading: Reading, counters: Counters}}
 */
export function readStats(report, before) {
  const stats = [...report];
  const byId = new Map(stats.map((stat) => [stat.id, stat]));
  const inbound = stats.find((stat) => stat.type === "inbound-rtp" && stat.kind === "audio") ?? {};
  const remote = stats.find((stat) => stat.type === "remote-inbound-rtp" && stat.kind === "audio") ?? {};
  const transport = stats.find((stat) => stat.type === "transport" && stat.selectedCandidatePairId);
  const pair =
    byId.get(transport?.selectedCandidatePairId) ??
    stats.find((stat) => stat.type === "candidate-pair" && stat.nominated && stat.state === "succeeded") ??
    {};
  const counters = {
    received: inbound.packetsReceived ?? 0,
    receivedLost: inbound.packetsLost ?? 0,
    concealed: (inbound.concealedSamples ?? 0) - (inbound.silentConcealedSamples ?? 0),
    samples: inbound.totalSamplesReceived ?? 0,
  };
  const since = before ?? { received: 0, receivedLost: 0, concealed: 0, samples: 0 };
  const lost = Math.max(0, counters.receivedLost - since.receivedLost);
  const got = counters.received - since.received;
  return {
    counters,
    reading: {
      lossIn: got + lost > 0 ? lost / (got + lost) : null,
      lossOut: remote.fractionLost ?? null,
      concealed: ratio(Math.max(0, counters.concealed - since.concealed), counters.samples - since.samples),
      jitterMs: milliseconds(inbound.jitter),
      bufferMs: milliseconds(ratio(inbound.jitterBufferDelay, inbound.jitterBufferEmittedCount)),
      roundTripMs: milliseconds(pair.currentRoundTripTime ?? remote.roundTripTime),
      codec: codecName(byId.get(inbound.codecId)),
      path: PATHS[byId.get(pair.localCandidateId)?.candidateType] ?? null,
    },
  };
}

/**
 * In a word. From about 3 % of loss, 60 ms of jitter or 300 ms of round trip a talk is tiring; from 10 %, 120 and 600 hard.
 * @param {Reading} reading
 * @returns {Verdict}
 */
export function verdict({ lossIn, lossOut, jitterMs, roundTripMs }) {
  const worstLoss = Math.max(lossIn ?? 0, lossOut ?? 0);
  if (lossIn === null && lossOut === null && roundTripMs === null) return "unknown";
  const [jitter, trip] = [jitterMs ?? 0, roundTripMs ?? 0];
  if (worstLoss >= 0.1 || jitter >= 120 || trip >= 600) return "poor";
  return worstLoss >= 0.03 || jitter >= 60 || trip >= 300 ? "fair" : "good";
}

/**
 * Read until `signal`.
 * @param {RTCPeerConnection} connection
 * @param {(reading: Reading) => void} show
 * @param {AbortSignal} signal
 */
export function watchQuality(connection, show, signal) {
  /** @type {Counters | null} */
  let before = null;
  const timer = setInterval(async () => {
    const report = await connection.getStats();
    if (signal.aborted) return;
    const { reading, counters } = readStats(report.values(), before);
    before = counters;
    show(reading);
  }, EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
}

/** @param {number | undefined} part @param {number | undefined} whole */
function ratio(part, whole) {
  return part !== undefined && whole ? part / whole : null;
}

/** @param {number | null | undefined} seconds */
function milliseconds(seconds) {
  return typeof seconds === "number" ? seconds * 1000 : null;
}

/** @param {any} codec */
function codecName(codec) {
  return codec ? `${codec.mimeType.split("/")[1]}, ${codec.clockRate / 1000} kHz` : null;
}
