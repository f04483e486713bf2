/** What the console knows: kept from what the stream tells. Pure; the views draw it. */

const MOST_POINTS = 600;
const MOST_ENTRIES = 500;

/**
 * @typedef {{item_id: string, role: string, text: string, cut?: boolean, unheard?: string, at_ms: number}} Entry
 * @typedef {import("../call/waterfall.js").TurnTimes & {prompt_tokens?: number, prefilled_tokens?: number,
 *   completion_tokens?: number}} Times
 * @typedef {object} Call
 * @property {string} id
 * @property {any} summary as `GET /v1/calls` has it
 * @property {number} version
 * @property {Map<string, Entry>} entries in their order
 * @property {Map<string, Times>} turns
 * @property {Entry[]} partials what is being said now
 * @property {boolean} whole whether the entries are all there are
 */

export class Board {
  constructor() {
    /** @type {Map<string, Call>} live ones, and the one that is open */
    this.calls = new Map();
    /** @type {string | null} */
    this.openId = null;
    /** @type {any} */
    this.server = null;
    /** @type {any} */
    this.engines = null;
    /** @type {any[]} one a second */
    this.points = [];
    /** How far the server's clock is ahead of ours. */
    this.skewMs = 0;
  }

  get live() {
    return [...this.calls.values()].filter((call) => call.summary.state !== "ended").reverse();
  }

  get open() {
    return this.openId === null ? null : (this.calls.get(this.openId) ?? null);
  }

  /** @param {string} event @param {any} told @returns {boolean} whether calls have ended */
  apply(event, told) {
    if (event === "snapshot") {
      const open = this.open;
      this.calls.clear();
      if (open) this.calls.set(open.id, { ...open, whole: false });
      this.points = [];
    } else if (event !== "change") {
      return false;
    }
    this.server = told.server ?? this.server;
    this.engines = told.engines ?? this.engines;
    this.#addPoints(told.points ?? []);
    const calls = told.calls ?? [];
    // A snapshot has the newest first; here the oldest is.
    for (const view of event === "snapshot" ? calls.reverse() : calls) this.merge(view);
    for (const id of told.gone ?? []) {
      const call = this.calls.get(id);
      if (call && call.summary.state !== "ended") call.summary = { ...call.summary, state: "ended" };
      if (id !== this.openId) this.calls.delete(id);
    }
    return (told.gone ?? []).length > 0;
  }

  /** @param {any} view what is new of a call, or (a record that was asked for) all @param {boolean} [whole] */
  merge(view, whole = false) {
    const { entries, turns, partials, kept, missed, version, ...summary } = view;
    /** @type {Call} */
    const call = this.calls.get(view.id) ?? {
      id: view.id,
      summary,
      version: 0,
      entries: new Map(),
      turns: new Map(),
      partials: [],
      whole: !missed,
    };
    this.calls.set(view.id, call);
    const older = version < call.version;
    if (!older) Object.assign(call, { summary, version, partials });
    if (kept) for (const id of call.entries.keys()) if (!kept.includes(id)) call.entries.delete(id);
    if (whole) {
      // What came while the record was on its way is newer than it.
      call.entries = new Map([...byId(entries, "item_id"), ...(older ? call.entries : [])]);
      call.turns = new Map([...byId(turns, "response_id"), ...(older ? call.turns : [])]);
      call.whole = true;
    } else {
      for (const entry of entries) call.entries.set(entry.item_id, entry);
      for (const times of turns) call.turns.set(times.response_id, times);
      if (missed) call.whole = false;
    }
    for (const id of call.entries.keys()) if (call.entries.size > MOST_ENTRIES) call.entries.delete(id);
  }

  /** Forget the call that was open, unless it is live. */
  shut() {
    const open = this.open;
    if (open?.summary.state === "ended") this.calls.delete(open.id);
    this.openId = null;
  }

  /** @param {any[]} points */
  #addPoints(points) {
    this.points.push(...points);
    if (this.points.length > MOST_POINTS) this.points.splice(0, this.points.length - MOST_POINTS);
    const last = points.at(-1);
    if (last) this.skewMs = last.at_ms - Date.now();
  }

  /** Milliseconds since a call began, or how long it lasted. @param {any} summary */
  age(summary) {
    return summary.ended_ms ?? Math.max(0, Date.now() + this.skewMs - Date.parse(summary.started_at));
  }
}

/** @param {any[]} list @param {string} key @returns {[string, any][]} */
function byId(list, key) {
  return list.map((one) => [one[key], one]);
}
