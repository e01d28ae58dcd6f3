// The event stream of the server, read with fetch: unlike EventSource, it shows the status of a refused connection
// and resumes after its own back-off. It is closed while the page is hidden: browsers allow few connections per host.

import { endSession } from "./api.js";

const PATH = "/api/v1/dashboard/events";
const FIRST_DELAY_MS = 1000;
const LONGEST_DELAY_MS = 30000;
// The server sends a comment every 15 seconds. After three of them are missing, the connection is dead.
const SILENCE_MS = 45000;
// The server accepts no more.
const MOST_WATCHED = 100;

/** Dispatches "message" with {kind, data}, "reload" after an interruption, and "connection" with {state, retryAt, reason}.
 *
 * States: connecting, open, lost.
 */
export class EventStream extends EventTarget {
  #lastId = null;
  #delay = FIRST_DELAY_MS;
  #abort = null;
  #timer = null;
  // Batches to report on, besides the newest ones and those of the overview.
  #watched = new Set();
  #started = false;
  // Something may have changed while nobody listened.
  #stale = false;

  start() {
    this.#started = true;
    document.addEventListener("visibilitychange", this.#visibility);
    window.addEventListener("online", this.#retryNow);
    this.#visibility();
  }

  stop() {
    this.#started = false;
    document.removeEventListener("visibilitychange", this.#visibility);
    window.removeEventListener("online", this.#retryNow);
    this.#close();
  }

  /** Report on these batches, too. The page loads its data once more: it may have changed before the stream began. */
  watch(ids) {
    const wanted = ids.slice(0, MOST_WATCHED);
    if (wanted.every((id) => this.#watched.has(id))) return;
    this.#watched = new Set(wanted);
    this.#stale = true;
    if (!this.#started || !this.#abort) return;
    this.#close();
    this.#connect();
  }

  #visibility = () => {
    this.#close();
    if (document.hidden) this.#stale = true;
    else this.#connect();
  };

  #retryNow = () => {
    if (this.#timer) this.#visibility();
  };

  #close() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#abort?.abort();
    this.#abort = null;
  }

  async #connect() {
    const abort = (this.#abort = new AbortController());
    this.#timer = null;
    this.#report("connecting");
    try {
      const headers = this.#lastId ? { "last-event-id": this.#lastId } : {};
      const query = this.#watched.size ? `?watch=${[...this.#watched].join(",")}` : "";
      const response = await fetch(PATH + query, { headers, signal: abort.signal, cache: "no-store" });
      if (response.status === 401) return endSession();
      if (!response.ok) throw new Refused((await response.json()).error.message);
      this.#report("open");
      await this.#read(response.body.pipeThrough(new TextDecoderStream()).getReader(), abort);
      throw new Error("the stream ended");
    } catch (error) {
      // Whatever broke the connection, the answer is the same: say so and try again.
      if (this.#abort === abort) this.#lost(error instanceof Refused ? error.message : null);
    }
  }

  async #read(reader, abort) {
    let buffer = "";
    let silence;
    try {
      for (;;) {
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), SILENCE_MS);
        const { value, done } = await reader.read();
        if (done) return;
        const blocks = (buffer + value).split("\n\n");
        buffer = blocks.pop();
        blocks.forEach((block) => this.#block(block));
      }
    } finally {
      clearTimeout(silence);
    }
  }

  #block(block) {
    const fields = { event: "message", data: "" };
    for (const line of block.split("\n")) {
      const [, name, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
      if (name === "data") fields.data += value;
      else if (name) fields[name] = value;
    }
    if (fields.id) this.#lastId = fields.id;
    if (!fields.data) return;
    this.#delay = FIRST_DELAY_MS;
    if (fields.event === "hello") {
      if (this.#stale) this.dispatchEvent(new Event("reload"));
      this.#stale = false;
      return;
    }
    this.dispatchEvent(new CustomEvent("message", { detail: { kind: fields.event, data: JSON.parse(fields.data) } }));
  }

  #lost(reason) {
    // Up to a quarter more, so that many pages do not return at the same moment.
    const delay = this.#delay * (1 + Math.random() / 4);
    this.#delay = Math.min(LONGEST_DELAY_MS, this.#delay * 2);
    this.#abort = null;
    this.#stale = true;
    this.#report("lost", Date.now() + delay, reason);
    this.#timer = setTimeout(() => this.#connect(), delay);
  }

  #report(state, retryAt = null, reason = null) {
    this.dispatchEvent(new CustomEvent("connection", { detail: { state, retryAt, reason } }));
  }
}

/** The server does not accept the stream now, for example because too many pages are open. */
class Refused extends Error {}
