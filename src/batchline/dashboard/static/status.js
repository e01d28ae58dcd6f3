// Statuses and counts: always an icon and a word, never only a colour. And the stacked progress bar.

import { h, s } from "./dom.js";
import { number, percent } from "./format.js";
import { icon } from "./icons.js";

// Status or item state: [word, icon, tone]. The tone is a class in the stylesheet.
const STATUSES = {
  completed: ["Completed", "check", "good"],
  in_progress: ["In progress", "progress", "busy"],
  in_flight: ["In flight", "progress", "busy"],
  validating: ["Validating", "progress", "busy"],
  finalizing: ["Writing files", "progress", "busy"],
  running: ["Running", "progress", "busy"],
  retrying: ["Retrying", "retry", "warn"],
  cancelling: ["Cancelling", "stop", "warn"],
  failed: ["Failed", "cross", "bad"],
  rejected: ["Rejected", "cross", "bad"],
  paused: ["Paused", "pause", "idle"],
  held: ["Held", "pause", "idle"],
  waiting_for_approval: ["Needs approval", "hand", "idle"],
  pending: ["Pending", "queue", "idle"],
  cancelled: ["Cancelled", "stop", "ended"],
  expired: ["Expired", "clock", "ended"],
  // Upstreams, workers, deliveries, findings.
  ok: ["OK", "check", "good"],
  delivered: ["Delivered", "check", "good"],
  idle: ["Idle", "pause", "idle"],
  limited: ["Limited", "clock", "warn"],
  unavailable: ["Unavailable", "cross", "bad"],
  late: ["Late", "clock", "bad"],
  error: ["Error", "cross", "bad"],
  warning: ["Warning", "warning", "warn"],
};

/** The statuses that the list of batches can be filtered by. */
export const BATCH_STATUSES = [
  "in_progress",
  "paused",
  "finalizing",
  "cancelling",
  "completed",
  "failed",
  "expired",
  "cancelled",
];
export const ITEM_STATES = ["failed", "retrying", "in_flight", "pending", "completed", "cancelled", "expired"];

/** Parts of the progress bar, in order. */
const PARTS = ["completed", "failed", "retrying", "in_flight", "cancelled", "expired", "pending"];

export function word(status) {
  return STATUSES[status]?.[0] ?? status;
}

export function badge(status, text) {
  const [known, drawing, tone] = STATUSES[status] ?? [status, "queue", "idle"];
  return h(`span.badge.${tone}`, { "data-status": status }, icon(drawing), text ?? known);
}

/** A batch that waits for an approval does not run yet, and one that has ended with failed lines is not all well. */
export function batchBadge(batch) {
  if (batch.approval === "pending" && !batch.ended_at) return badge("waiting_for_approval");
  if (batch.status === "completed" && batch.counts.failed > 0)
    return h(
      "span.badge.warn",
      { "data-status": "completed", title: "Completed; some lines failed" },
      icon("warning"),
      "Some failed",
    );
  return badge(batch.status);
}

export function done(counts) {
  return counts.completed + counts.failed + counts.cancelled + counts.expired;
}

/** Completed, failed, retrying, in flight and pending side by side. A part that exists is at least visible. */
export function progressBar(counts) {
  const total = Math.max(1, counts.total);
  const widths = PARTS.map((part) => (counts[part] ? Math.max(6, (1000 * counts[part]) / total) : 0));
  const scale =
    1000 /
    Math.max(
      1000,
      widths.reduce((sum, width) => sum + width, 0),
    );
  let x = 0;
  const parts = PARTS.map((part, index) => {
    const width = widths[index] * scale;
    const rect = s(`rect.part.${part}`, { x: x.toFixed(1), width: width.toFixed(1), height: 8 });
    x += width;
    return rect;
  });
  const said = PARTS.filter((part) => counts[part]).map(
    (part) => `${number(counts[part])} ${word(part).toLowerCase()}`,
  );
  return s(
    "svg.progress",
    { viewBox: "0 0 1000 8", preserveAspectRatio: "none", role: "img", "aria-label": said.join(", ") || "no lines" },
    parts,
  );
}

/** The bar with the share that has ended. */
export function progress(counts) {
  return h(
    "div.progress-cell",
    progressBar(counts),
    h("span", { "data-live": true }, percent(done(counts), counts.total)),
  );
}

/** The counts behind the bar, each with its colour, word and number. */
export function legend(counts, href) {
  return h(
    "ul.legend",
    [...PARTS, "reused"]
      .filter((part) => counts[part] || ["completed", "failed", "retrying"].includes(part))
      .map((part) =>
        h(
          "li",
          h(`span.swatch.${part}`),
          part === "reused" ? "Reused" : h("a", { href: href(part) }, word(part)),
          h("b", { "data-live": true }, number(counts[part])),
        ),
      ),
  );
}
