/** How the pages ask the gateway: the key goes in a header, never in an address, and no answer is kept. */

/** The gateway's answer was no. `code` is the gateway's own, or one of ours where it gave none. */
export class Refusal extends Error {
  /** @param {string} code @param {number} status 0: no answer at all @param {number} retryAfterS 0: it did not say */
  constructor(code, status, retryAfterS = 0) {
    super(code);
    this.code = code;
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

const KEY_REFUSED = ["missing_api_key", "invalid_api_key", "key_out_of_scope"];

/** Whether a refusal means that another key is needed. @param {string} code */
export const wantsKey = (code) => KEY_REFUSED.includes(code);

const noGateway = () => new Refusal("gateway_unreachable", 0);

/** As UTF-8: beyond Latin-1 a header takes no text, only bytes. @param {string | null} key @returns {Record<string, string>} */
function bearer(key) {
  if (key === null) return {};
  return { Authorization: `Bearer ${String.fromCharCode(...new TextEncoder().encode(key))}` };
}

/**
 * @param {string} url
 * @param {string | null} key
 * @param {RequestInit & {headers?: Record<string, string>}} [options]
 * @returns {Promise<Response>}
 * @throws {Refusal} and what an aborted `options.signal` throws
 */
export async function ask(url, key, options = {}) {
  const headers = { ...options.headers, ...bearer(key) };
  let response;
  try {
    response = await fetch(url, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw noGateway();
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const code = body?.error?.code ?? (response.status === 429 ? "rate_limited" : "refused");
  throw new Refusal(code, response.status, Math.max(0, Number(response.headers.get("Retry-After"))) || 0);
}

/**
 * As {@link ask}, and what the answer says. What answers in the gateway's place (a hotel's sign-in page) says no JSON.
 * @param {Parameters<typeof ask>} asked
 * @returns {Promise<any>}
 */
export async function askJson(...asked) {
  const response = await ask(...asked);
  const told = await response.json().catch(() => null);
  if (told === null) throw noGateway();
  return told;
}
