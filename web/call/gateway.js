/** The page's requests to the gateway: who can be called, a secret for one call, the call itself, its end. */

import { ask, askJson } from "../asking.js";

/**
 * @typedef {{name: string, greeting: string, language: string}} Agent
 * @typedef {{agents: Agent[], notice: string}} Callable `notice`: what a caller should know of this gateway, or ""
 * @typedef {{value: string, iceServers: RTCIceServer[]}} Secret
 */

const SECRETS = "/v1/realtime/client_secrets";
const CALLS = "/v1/realtime/calls";

/**
 * @param {string | null} key
 * @param {AbortSignal} [signal]
 * @returns {Promise<Callable>}
 * @throws {import("../asking.js").Refusal}
 */
export async function listAgents(key, signal) {
  const { data, notice } = await askJson("/v1/agents", key, { signal });
  return { agents: data ?? [], notice: notice ?? "" };
}

/**
 * Exchange the key for a secret that opens one call to this agent.
 * @param {string | null} key
 * @param {string} agent
 * @param {AbortSignal} signal
 * @returns {Promise<Secret>}
 * @throws {import("../asking.js").Refusal}
 */
export async function askSecret(key, agent, signal) {
  const body = await askJson(SECRETS, key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    // "offhook": tell what the protocol has no event for, too: the times of each turn, the heard part of a cut one.
    body: JSON.stringify({ agent, session: { type: "realtime", include: ["offhook"] } }),
    signal,
  });
  return { value: body.value, iceServers: body.ice_servers ?? [] };
}

/**
 * @param {string} offer SDP
 * @param {string} secret
 * @param {AbortSignal} signal
 * @returns {Promise<{id: string, answer: string}>}
 * @throws {import("../asking.js").Refusal}
 */
export async function placeCall(offer, secret, signal) {
  const headers = { "Content-Type": "application/sdp" };
  const response = await ask(CALLS, secret, { method: "POST", headers, body: offer, signal });
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
