// Runs one page at a time: loads its data, shows its view, applies events to the data, and shows the view again.
//
// A page is {title, key?, load(signal), view(data), events?, watch?}. `load` fetches everything; `view` makes nodes from it.
// `events` maps a kind of event to a function (data, event) that returns the new data, or nothing if it does not
// concern the page. `watch` returns the ids of the batches it shows. Two pages with the same `key`, or title, share
// nodes; what the user typed on one must not appear on another.

import { h, morph } from "./dom.js";
import { errorNotice } from "./notices.js";

// Live updates redraw at most twice per second.
const REDRAW_MS = 500;
// Relative times go on without events.
const TICK_MS = 15000;
// A page that loads faster shows no sign of loading.
const LOADING_MS = 200;

export class PageRunner {
  #outlet;
  #watch;
  #page = null;
  #data = null;
  #node;
  #abort = new AbortController();
  #redrawing = null;
  // Events that came while the data was loading, or null. The answer may be older than they are.
  #meanwhile = null;

  /** `watch` gets the ids of the batches that the page shows. */
  constructor(outlet, watch) {
    this.#outlet = outlet;
    this.#watch = watch;
    this.#node = outlet.appendChild(h("div"));
    setInterval(() => this.redraw(), TICK_MS);
  }

  async show(page) {
    this.#abort.abort();
    this.#page = page;
    this.#data = null;
    document.title = `${page.title} · Batchline`;
    const loading = setTimeout(() => this.#outlet.classList.add("loading"), LOADING_MS);
    await this.reload();
    clearTimeout(loading);
    this.#outlet.classList.remove("loading");
  }

  /** Load the data again, for example after an action or a lost connection. An older load is abandoned. */
  async reload() {
    this.#abort.abort();
    const { signal } = (this.#abort = new AbortController());
    const page = this.#page;
    this.#meanwhile = [];
    try {
      const data = await page.load(signal);
      if (signal.aborted) return;
      this.#data = data;
      const meanwhile = this.#meanwhile;
      this.#meanwhile = null;
      meanwhile.forEach(([kind, event]) => this.#apply(kind, event));
      this.redraw();
      this.#watch(page.watch?.(data) ?? []);
    } catch (error) {
      if (signal.aborted) return;
      this.#meanwhile = null;
      if (error.status === undefined) throw error;
      this.#put(
        h(
          "section",
          h("h1", page.title),
          errorNotice(error, () => this.reload()),
        ),
      );
    }
  }

  redraw() {
    if (this.#data !== null) this.#put(this.#page.view(this.#data));
  }

  message(kind, event) {
    this.#meanwhile?.push([kind, event]);
    if (!this.#apply(kind, event) || this.#redrawing) return;
    this.#redrawing = setTimeout(() => {
      this.#redrawing = null;
      this.redraw();
    }, REDRAW_MS);
  }

  /** Whether the event changed the data. */
  #apply(kind, event) {
    const apply = this.#page?.events?.[kind];
    const data = this.#data !== null && apply ? apply(this.#data, event) : undefined;
    if (data === undefined) return false;
    this.#data = data;
    return true;
  }

  #put(view) {
    view.dataset.key = this.#page.key ?? this.#page.title;
    this.#node = morph(this.#node, view);
  }
}
