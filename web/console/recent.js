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

  /** @param {string | null} after */
  async #ask(after) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const query = this.input.value.trim();
    try {
      const { data, has_more: hasMore } = await findCalls(query, after, asking.signal);
      if (this.asking !== asking) return;
      this.found = after === null ? data : [...this.found, ...data];
      this.show(this.found, hasMore, query);
    } catch (error) {
      // The stream says that the gateway is away, or that another key is needed.
      if (!(error instanceof Refusal) && !asking.signal.aborted) throw error;
    }
  }
}
