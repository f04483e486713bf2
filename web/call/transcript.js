/**
 * What was said in a call, built from the server's events: each entry one turn of the caller or the agent.
 * The page shows it; nothing here knows how.
 */

/**
 * @typedef {"listening" | "partial" | "final" | "failed" | "speaking" | "done" | "cut"} EntryStatus
 * @typedef {object} Entry
 * @property {string} id the item's id
 * @property {"user" | "assistant"} role
 * @property {string} text all that was said, as far as it is known
 * @property {string | null} heard of an agent's text that was cut: what the caller heard of it
 * @property {EntryStatus} status
 * @property {boolean} keys typed on the keypad
 *
 * @typedef {{text: string, heard: boolean}} Piece
 */

const MOST_ENTRIES = 500;
const AUDIO = "conversation.item.input_audio_transcription";

export class Transcript {
  constructor() {
    /** @type {Map<string, Entry>} in the order of the conversation */
    this.entries = new Map();
    /** @type {Map<string, string>} the item a response speaks */
    this.spoken = new Map();
  }

  /**
   * Take one server event.
   * @param {any} event
   * @returns {string | null} the id of the entry that changed, or went (the oldest go unsaid, once there are too many)
   */
  apply(event) {
    switch (event.type) {
      case "input_audio_buffer.speech_started":
        return this.#change(event.item_id, "user", {});
      case "input_audio_buffer.cleared":
        return this.#dropWordless();
      case `${AUDIO}.delta`:
        return this.#append(event.item_id, "user", event.delta ?? "", "partial");
      case `${AUDIO}.completed`:
        return event.transcript
          ? this.#change(event.item_id, "user", { text: event.transcript, status: "final" })
          : this.#drop(event.item_id);
      case `${AUDIO}.failed`:
        return this.#change(event.item_id, "user", { status: "failed" });
      case "conversation.item.added":
      case "conversation.item.done":
        return this.#added(event.item);
      case "conversation.item.deleted":
        return this.#drop(event.item_id);
      case "response.output_item.added":
        this.#speaks(event.response_id, event.item.id);
        return this.#change(event.item.id, "assistant", {});
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta":
        return this.#append(event.item_id, "assistant", event.delta ?? "", "speaking");
      case "response.output_item.done":
        return this.#outputDone(event.item);
      case "response.done":
        return this.#responseDone(event.response);
      case "output_audio_buffer.stopped":
        return this.#played(event.response_id);
      case "conversation.item.truncated":
        return typeof event.transcript === "string" ? this.#cut(event.item_id, event.transcript) : null;
      case "conversation.item.retrieved":
        return this.#retrieved(event.item);
      default:
        return null;
    }
  }

  /** @param {string} responseId @param {string} itemId */
  #speaks(responseId, itemId) {
    this.spoken.set(responseId, itemId);
    if (this.spoken.size > MOST_ENTRIES) {
      const [oldest] = this.spoken.keys();
      this.spoken.delete(oldest);
    }
  }

  /** @param {string} id @param {Entry["role"]} role @param {Partial<Entry>} change */
  #change(id, role, change) {
    if (!id) return null;
    const status = role === "user" ? "listening" : "speaking";
    const before = this.entries.get(id) ?? { id, role, text: "", heard: null, status, keys: false };
    this.entries.set(id, { ...before, ...change });
    if (this.entries.size > MOST_ENTRIES) {
      const [oldest] = this.entries.keys();
      this.entries.delete(oldest);
    }
    return id;
  }

  /** @param {string} id @param {Entry["role"]} role @param {string} delta @param {EntryStatus} status */
  #append(id, role, delta, status) {
    const before = this.entries.get(id);
    if (before?.status === "cut" || before?.status === "final") return null;
    return this.#change(id, role, { text: (before?.text ?? "") + delta, status });
  }

  /** @param {string} id */
  #drop(id) {
    return this.entries.delete(id) ? id : null;
  }

  /** What began as speech held no words. */
  #dropWordless() {
    for (const entry of this.entries.values()) {
      if (entry.status === "listening") return this.#drop(entry.id);
    }
    return null;
  }

  /** @param {any} item */
  #added(item) {
    if (item?.type !== "message" || item.role !== "user") return null;
    const part = item.content?.[0];
    if (part?.type !== "input_text") return null;
    const keys = keysOf(part.text ?? "");
    return this.#change(item.id, "user", { text: keys ?? part.text ?? "", status: "final", keys: keys !== null });
  }

  /** All that was made, also of an answer that was cut: what was heard of it comes next. @param {any} item */
  #outputDone(item) {
    const shown = textOf(item);
    const before = this.entries.get(item.id);
    return this.#change(item.id, "assistant", shown && !before?.text ? { text: shown } : {});
  }

  /** What was heard, of an answer that did not end by itself; `truncated`, which may follow, says the same.
   * @param {any} response */
  #responseDone(response) {
    const item = response?.output?.[0];
    const heard = textOf(item);
    const before = this.entries.get(item?.id);
    if (item?.status !== "incomplete" || heard === null || !before) return null;
    const all = heardUpTo(before.text, heard) >= before.text.trimEnd().length;
    return response.status !== "cancelled" && all ? null : this.#cut(item.id, heard);
  }

  /** @param {any} item */
  #retrieved(item) {
    const shown = textOf(item);
    return item?.role === "assistant" && item.status === "incomplete" && shown !== null
      ? this.#cut(item.id, shown)
      : null;
  }

  /** @param {string} id @param {string} heard */
  #cut(id, heard) {
    const before = this.entries.get(id);
    return this.#change(id, "assistant", { text: before?.text || heard, heard, status: "cut" });
  }

  /** @param {string} responseId */
  #played(responseId) {
    const id = this.spoken.get(responseId);
    const entry = id === undefined ? undefined : this.entries.get(id);
    return entry?.status === "speaking" ? this.#change(entry.id, "assistant", { status: "done" }) : null;
  }
}

/** @param {any} item @returns {string | null} */
function textOf(item) {
  const part = item?.content?.[0];
  return part ? (part.transcript ?? part.text ?? "") : null;
}

/** An entry on the keypad, as the gateway writes it into the conversation. @param {string} text */
function keysOf(text) {
  return /^\(keypad: ([\d*#A-D]+)\)$/.exec(text)?.[1] ?? null;
}

/**
 * An entry's text, told apart by whether the caller heard it.
 * @param {Entry} entry
 * @returns {Piece[]}
 */
export function pieces(entry) {
  if (entry.status !== "cut" || entry.heard === null) return entry.text ? [{ text: entry.text, heard: true }] : [];
  const at = heardUpTo(entry.text, entry.heard);
  /** @type {Piece[]} */
  const both = [
    { text: entry.text.slice(0, at).trimEnd(), heard: true },
    { text: entry.text.slice(at).trim(), heard: false },
  ];
  return both.filter((piece) => piece.text !== "");
}

/**
 * Where in `text` the heard part ends: its length where it is a prefix, otherwise as far as both agree but for spaces.
 * @param {string} text
 * @param {string} heard
 */
export function heardUpTo(text, heard) {
  if (text.startsWith(heard)) return heard.length;
  let at = 0;
  for (const letter of heard.replace(/\s+/g, "")) {
    let next = at;
    while (next < text.length && /\s/.test(text[next])) next += 1;
    if (text[next] !== letter) return at;
    at = next + 1;
  }
  return at;
}
