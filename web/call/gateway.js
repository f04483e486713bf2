/** The page's requests to the gateway: who can be called, a secret for one call, the call itself, its end. */

/**
 * @typedef {{name: string, greeting: string, language: string}} Agent
 * @typedef {{value: string, iceServers: RTCIceServer[]}} Secret
 */

const SECRETS = "/v1/realtime/client_secrets";
const CALLS = "/v1/realtime/calls";

/** The gateway's answer was no. `code` is one that messages.js knows, or the gateway's own. */
export class Refusal extends Error {
  /** @param {string} code @param {number} status 0: no answer at all @param {number | null} retryAfterS */
  constructor(code, status, retryAfterS = null) {
    super(code);
    this.code = code;
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

/**
 * @param {string | null} key
 * @param {AbortSignal} [signal]
 * @returns {Promise<Agent[]>}
 * @throws {Refusal}
 */
export async function listAgents(key, signal) {
  const response = await ask("/v1/agents", { headers: bearer(key), signal });
  return (await response.json()).data;
}

/**
 * Exchange the key for a secret that opens one call to this agent.
 * @param {string | null} key
 * @param {string} agent
 * @param {AbortSignal} signal
 * @returns {Promise<Secret>}
 * @throws {Refusal}
 */
export async function askSecret(key, agent, signal) {
  const response = await ask(SECRETS, {
    method: "POST",
    headers: { ...bearer(key), "Content-Type": "application/json" },
    // "offhook": tell what the protocol has no event for, too: the times of each turn, the heard part of a cut one.
    body: JSON.stringify({ agent, session: { type: "realtime", include: ["offhook"] } }),
    signal,
  });
  const body = await response.json();
  return { value: body.value, iceServers: body.ice_servers ?? [] };
}

/**
 * @param {string} offer SDP
 * @param {string} secret
 * @param {AbortSignal} signal
 * @returns {Promise<{id: string, answer: string}>}
 * @throws {Refusal}
 */
export async function placeCall(offer, secret, signal) {
  const headers = { ...bearer(secret), "Content-Type": "application/sdp" };
  const response = await ask(CALLS, { method: "POST", headers, body: offer, signal });
  const id = (response.headers.get("Location") ?? "").split("/").pop() ?? "";
  return { id, answer: await response.text() };
}

/**
 * Tell the gateway that the call is over; it works while the page goes away, too.
 * @param {string} id
 * @param {string} secret the one that opened the call
 */
export function hangUp(id, secret) {
  const body = new Blob([JSON.stringify({ client_secret: secret })], { type: "application/json" });
  navigator.sendBeacon(`${CALLS}/${encodeURIComponent(id)}/hangup`, body);
}

/** @param {string | null} key @returns {Record<string, string>} */
function bearer(key) {
  return key === null ? {} : { Authorization: `Bearer ${key}` };
}

/** @param {string} url @param {RequestInit} options */
async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, { ...options, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Refusal("gateway_unreachable", 0);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const code = body?.error?.code ?? (response.status === 429 ? "rate_limited" : "refused");
  const wait = Number(response.headers.get("Retry-After"));
  throw new Refusal(code, response.status, Number.isFinite(wait) && wait > 0 ? wait : null);
}
