/** Asking for the access key, where the gateway wants one. It is kept for this tab only, and never in an address. */

import { Refusal, wantsKey } from "../asking.js";
import { keptKey } from "../storage.js";
import { byId, setText } from "./dom.js";
import { listAgents } from "./gateway.js";
import { messageOf } from "./messages.js";

/** @typedef {import("./gateway.js").Callable} Callable */

export const [accessKey, setAccessKey] = keptKey("offhook.key");

/**
 * Come in: with the key of this tab, or none where none is needed, or the one a person types.
 * @param {{open: () => void, done: (found: Callable) => void, failed: (refusal: Refusal) => void}} show
 *   `open` shows the form
 */
export async function comeIn(show) {
  try {
    show.done(await listAgents(accessKey()));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (!wantsKey(error.code)) return show.failed(error);
    const hadKey = accessKey() !== null;
    setAccessKey(null);
    openForm(show, hadKey ? error.code : null);
  }
}

/** @param {Parameters<typeof comeIn>[0]} show @param {string | null} why a key was refused */
function openForm(show, why) {
  const form = byId("login-form");
  const input = /** @type {HTMLInputElement} */ (byId("login-key"));
  const button = /** @type {HTMLButtonElement} */ (byId("login-button"));
  const problem = byId("login-problem");

  /** @param {string} text */
  const complain = (text) => {
    setText(problem, text);
    problem.hidden = text === "";
    input.setAttribute("aria-invalid", String(text !== ""));
  };

  form.onsubmit = async (submitted) => {
    submitted.preventDefault();
    const key = input.value.trim();
    if (key === "") return input.focus();
    button.disabled = true;
    try {
      const found = await listAgents(key);
      setAccessKey(key);
      input.value = "";
      complain("");
      show.done(found);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      const { title, text } = messageOf(error.code, error);
      complain(wantsKey(error.code) ? "That key is not accepted. Check it and try again." : `${title}. ${text}`);
      input.select();
    } finally {
      button.disabled = false;
    }
  };
  complain(why === null ? "" : messageOf(why).title + ". " + messageOf(why).text);
  show.open();
  input.focus();
}
