/** What the console asks of the gateway. The key goes in a header, never in an address. */

const STORED = "offhook.console-key";

/** The gateway's answer was no. `status` 0: there was no answer at all. */
export class Refusal extends Error {
  /** @param {string} code @param {number} status @param {number} [retryAfterS] */
  constructor(code, status, retryAfterS = 0) {
    super(code);
    this.code = code;
    this.status = status;
    this.retryAfterS = retryAfterS;
  }

  get wantsKey() {
    return ["missing_api_key", "invalid_api_key", "key_out_of_scope"].includes(this.code);
  }
}

/** @type {string | null} */
let key = null;
try {
  key = sessionStorage.getItem(STORED);
} catch {
  // Storage is forbidden: the key lives as long as the page.
}

export const hasKey = () => key !== null;

/** @param {string | null} value null forgets it */
export function setKey(value) {
  key = value;
  try {
    if (value === null) sessionStorage.removeItem(STORED);
    else sessionStorage.setItem(STORED, value);
  } catch {
    // Not remembered, then.
  }
}

/**
 * @param {string} path below /console/
 * @param {RequestInit} [options]
 * @returns {Promise<Response>}
 * @throws {Refusal}
 */
export async function ask(path, options = {}) {
  /** @type {Record<string, string>} */
  const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
  let response;
  try {
    response = await fetch(`/console/${path}`, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Refusal("gateway_unreachable", 0);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Refusal(body?.error?.code ?? "refused", response.status, Number(response.headers.get("Retry-After")) || 0);
}

/** @param {string} query @param {string | null} after the last id there is already @param {AbortSignal} signal */
export async function findCalls(query, after, signal) {
  const parameters = new URLSearchParams({ q: query, ...(after === null ? {} : { after }) });
  return (await ask(`calls?${parameters}`, { signal })).json();
}

/** @param {string} id */
export const readCall = async (id) => (await ask(`calls/${encodeURIComponent(id)}`)).json();

/** @param {string} id */
export const hangUp = (id) => ask(`calls/${encodeURIComponent(id)}/hangup`, { method: "POST" });

export const drain = async () => (await ask("drain", { method: "POST" })).json();
