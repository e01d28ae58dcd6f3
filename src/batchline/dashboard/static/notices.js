// Messages to the user: results of actions, errors with what to do next, and polite announcements to screen readers.

import { h } from "./dom.js";
import { copyable } from "./copy.js";
import { icon } from "./icons.js";

const VISIBLE_MS = 8000;
// Progress is announced at most this often.
const ANNOUNCE_MS = 10000;

const toasts = h("div.toasts", { role: "status", "aria-live": "polite" });
const announcer = h("div.visually-hidden", { role: "status", "aria-live": "polite" });
let announcedAt = 0;

export function noticeRegions() {
  return [toasts, announcer];
}

/** Show the result of an action for a while. `link` is [text, address]. */
export function toast(message, { bad = false, link } = {}) {
  const note = h(
    `div.toast${bad ? ".bad" : ""}`,
    icon(bad ? "warning" : "check"),
    h("span", message),
    link && h("a", { href: link[1] }, link[0]),
    h("button.quiet", { type: "button", "aria-label": "Dismiss", onclick: () => note.remove() }, icon("cross")),
  );
  toasts.append(note);
  if (!bad) setTimeout(() => note.remove(), VISIBLE_MS);
}

export function announce(message) {
  if (Date.now() - announcedAt < ANNOUNCE_MS) return;
  announcedAt = Date.now();
  announcer.textContent = message;
}

/** What happened, what to do, and the id of the request for the server's log. */
export function errorNotice(error, retry) {
  return h(
    "div.notice.bad",
    { role: "alert" },
    icon("warning"),
    h(
      "div",
      h("p", error.message),
      error.requestId && h("p.meta", "Request ", copyable(error.requestId), " in the server's log has the details."),
      retry && h("button", { type: "button", onclick: retry }, "Try again"),
    ),
  );
}

/** An empty list that says how to fill it. */
export function emptyState(title, explanation, command) {
  return h(
    "div.empty",
    h("p.empty-title", title),
    h("p", explanation),
    command && h("p.command", h("code", command), copyable(command, "Copy")),
  );
}
