/** What the console asks of the gateway. */

import { ask as askGateway, askJson } from "../asking.js";
import { keptKey } from "../storage.js";

const [consoleKey, setConsoleKey] = keptKey("offhook.console-key");

export const hasKey = () => consoleKey() !== null;

export const setKey = setConsoleKey;

/**
 * @param {string} path below /console/
 * @param {RequestInit & {headers?: Record<string, string>}} [options]
 * @returns {Promise<Response>}
 * @throws {import("../asking.js").Refusal}
 */
export const ask = (path, options) => askGateway(`/console/${path}`, consoleKey(), options);

/** @param {string} query @param {string | null} after the last id there is already @param {AbortSignal} signal */
export async function findCalls(query, after, signal) {
  const parameters = new URLSearchParams({ q: query, ...(after === null ? {} : { after }) });
  return askJson(`/console/calls?${parameters}`, consoleKey(), { signal });
}

/** @param {string} id */
export const readCall = (id) => askJson(`/console/calls/${encodeURIComponent(id)}`, consoleKey());

/** @param {string} id */
export const hangUp = (id) => ask(`calls/${encodeURIComponent(id)}/hangup`, { method: "POST" });

export const drain = () => ask("drain", { method: "POST" });
