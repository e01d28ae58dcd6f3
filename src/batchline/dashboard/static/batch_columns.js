// The columns of a batch, shared by all tables that list batches.

import { h } from "./dom.js";
import { NONE, cost, duration, number, rate, time } from "./format.js";
import { icon } from "./icons.js";
import { batchBadge, progress } from "./status.js";

export const batchAddress = (id, tab) => `/ui/batches/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}`;

/** The name that a user gave, or that of the file. */
export function batchName(batch) {
  return batch.name || batch.file?.name || batch.id;
}

export function isOpen(batch) {
  return !batch.ended_at;
}

const name = {
  label: "Batch",
  class: "name",
  cell: (batch) => [
    h("a.row-link", { href: batchAddress(batch.id), title: batchName(batch) }, batchName(batch)),
    h(
      "div.meta",
      [
        batch.kind === "operation" ? "operation" : (batch.model ?? "several models"),
        batch.priority ? `priority ${batch.priority}` : null,
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  ],
};
const status = { label: "Status", cell: (batch) => batchBadge(batch) };
const advance = { label: "Progress", class: "wide", cell: (batch) => progress(batch.counts) };
const lines = { label: "Lines", class: "number", cell: (batch) => number(batch.counts.total) };
const speed = {
  label: "Rate",
  class: "number",
  cell: (batch) => h("span", { "data-live": true }, rate(isOpen(batch) ? batch.rate_per_s : null)),
};
const eta = { label: "ETA", class: "number", cell: (batch) => duration(isOpen(batch) ? batch.eta_s : null) };
const failed = {
  label: "Failed",
  class: "number",
  sort: "failed",
  cell: (batch) =>
    batch.counts.failed
      ? h("a.bad-text", { href: batchAddress(batch.id, "failures"), "data-live": true }, number(batch.counts.failed))
      : h("span.meta", "0"),
};
const retrying = {
  label: "Retrying",
  class: "number",
  cell: (batch) =>
    h(batch.counts.retrying ? "span.warn-text" : "span.meta", { "data-live": true }, number(batch.counts.retrying)),
};
const age = { label: "Created", class: "number", sort: "created", cell: (batch) => time(batch.created_at) };
const spent = { label: "Cost", class: "number", cell: (batch) => cost(batch.cost) };
const deadline = { label: "Deadline", class: "number", sort: "deadline", cell: (batch) => deadlineText(batch) };

/** When a batch must end, and by how much it will be late. */
export function deadlineText(batch) {
  if (!isOpen(batch)) return NONE;
  const late = batch.forecast?.late_by_s;
  if (!late) return time(batch.expires_at);
  return [time(batch.expires_at), h("div.bad-text.late", icon("clock"), `late by ${duration(late)}`)];
}

export const BATCH_COLUMNS = [name, status, advance, lines, speed, eta, retrying, failed, age, spent];
export const OPERATION_COLUMNS = [name, status, advance, lines, retrying, failed, age, deadline];
export const OPEN_COLUMNS = [name, status, advance, speed, eta, retrying, failed, deadline];

/** Apply an event to the batch of a list that it names; nothing if no row changes. */
export function updateRow(rows, event) {
  if (!rows.some(({ id }) => id === event.id)) return undefined;
  return rows.map((row) => (row.id === event.id ? { ...row, ...event } : row));
}
