/** Asking before something is done that cannot be undone. */

import { byId, setText } from "../call/dom.js";

/** @param {string} title @param {string} text @param {string} yes what the button says @returns {Promise<boolean>} */
export function confirm(title, text, yes) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("confirm"));
  if (dialog.open) return Promise.resolve(false);
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), yes);
  dialog.returnValue = "";
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    byId("confirm-yes").onclick = () => dialog.close("yes");
    byId("confirm-no").onclick = () => dialog.close();
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
  });
}
