/**
 * What the page remembers: choices for good, the access key until the tab is closed. Storage can be forbidden; then
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

let key = orNull(() => sessionStorage.getItem("offhook.key"));

export const accessKey = () => key;

/** @param {string | null} value null forgets it */
export function setAccessKey(value) {
  key = value;
  quietly(() =>
    value === null ? sessionStorage.removeItem("offhook.key") : sessionStorage.setItem("offhook.key", value),
  );
}
