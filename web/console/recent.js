/** Which ended calls are listed: looked for by the gateway, which knows what was said in them. */

import { Refusal } from "../asking.js";
import { findCalls } from "./gateway.js";

const TYPING_MS = 250;

/** @typedef {(found: any[], hasMore: boolean, query: string) => void} Show */

export class Recent {
  /** @param {HTMLInputElement} input @param {HTMLElement} more @param {Show} show */
  constructor(input, more, show) {
    this.input = input;
    this.show = show;
    /** @type {any[]} */
    this.found = [];
    this.hasMore = false;
    this.query = "";
    /** @type {AbortController | null} */
    this.asking = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    input.addEventListener("input", () => this.refresh(TYPING_MS));
    more.addEventListener("click", () => this.#ask(this.found.at(-1)?.id ?? null));
  }

  /** Look again, soon: what asks often is answered once. @param {number} [afterMs] */
  refresh(afterMs = 500) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#ask(null), afterMs);
  }

  clear() {
    clearTimeout(this.timer);
    this.asking?.abort();
    this.input.value = "";
    this.found = [];
    this.show([], false, "");
  }

  /** Who has asked for older calls keeps them while newer ones come. @param {any[]} page */
  #olderThan(page) {
    const last = this.found.findIndex(({ id }) => id === page.at(-1)?.id);
    return last < 0 ? [] : this.found.slice(last + 1);
  }

  /** @param {string | null} after */
  async #ask(after) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const query = this.input.value.trim();
    try {
      const { data, has_more: hasMore } = await findCalls(query, after, asking.signal);
      if (this.asking !== asking) return;
      const older = after === null && query === this.query ? this.#olderThan(data) : [];
      if (older.length === 0) this.hasMore = hasMore;
      this.query = query;
      this.found = [...(after === null ? [] : this.found), ...data, ...older];
      this.show(this.found, this.hasMore, query);
    } catch (error) {
      // The stream says that the gateway is away, or that another key is needed.
      if (!(error instanceof Refusal) && !asking.signal.aborted) throw error;
    }
  }
}
