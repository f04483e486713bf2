/**
 * What the pages remember: choices for good, a key until the tab is closed. Storage can be forbidden; then
 * nothing is remembered and everything else works.
 */

/** @param {() => string | null} read */
function orNull(read) {
  try {
    return read();
  } catch {
    return null;
  }
}

/** @param {() => void} write */
function quietly(write) {
  try {
    write();
  } catch {
    // Not remembered, then.
  }
}

/** @param {string} name */
export const recall = (name) => orNull(() => localStorage.getItem(`offhook.${name}`));

/** @param {string} name @param {string} value */
export const remember = (name, value) => quietly(() => localStorage.setItem(`offhook.${name}`, value));

/**
 * A key that is kept for this tab.
 * @param {string} name
 * @returns {[() => string | null, (value: string | null) => void]} what there is, and setting it (null forgets it)
 */
export function keptKey(name) {
  let key = orNull(() => sessionStorage.getItem(name));
  const set = (/** @type {string | null} */ value) => {
    key = value;
    quietly(() => (value === null ? sessionStorage.removeItem(name) : sessionStorage.setItem(name, value)));
  };
  return [() => key, set];
}
