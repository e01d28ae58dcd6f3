// What waits for an approval: who submitted what and why, what will happen, and the buttons that decide.

import { decide } from "./batch_actions.js";
import { batchAddress } from "./batch_columns.js";
import { h } from "./dom.js";
import { number, plural, time } from "./format.js";
import { bodyView } from "./json.js";
import { badge } from "./status.js";

/** `title` is a heading. `done` is called after a decision, and when the user has decided nothing. */
export function approvalView(approval, title, done) {
  return h(
    "div.card.approval",
    h(
      "header",
      title,
      h("span.meta", `${plural(approval.count, "operation")} · by ${approval.submitter} · `, time(approval.created_at)),
    ),
    approval.description && h("p.meta", approval.description),
    approval.reason && h("blockquote", approval.reason),
    h("p.consequence", approval.consequence),
    h("details", h("summary", sampleTitle(approval)), approval.sample.map(childView)),
    h(
      "div.buttons",
      h("span.meta", "Expires ", time(approval.expires_at)),
      approval.may_decide ? decisions(approval, done) : h("span.meta", "You may not decide on this batch."),
    ),
  );
}

function decisions(approval, done) {
  // Of very large batches, only their own page has the digest that an approval names.
  if (!approval.content_digest) return h("a.button", { href: batchAddress(approval.id) }, "Open to decide");
  return [
    h("button.danger-text", { type: "button", onclick: () => decide(approval, "reject", done) }, "Reject"),
    h("button.primary", { type: "button", onclick: () => decide(approval, "approve", done) }, "Approve"),
  ];
}

function sampleTitle({ sample, count, completed, failed }) {
  const ran = completed + failed;
  return ran
    ? `Results of ${number(sample.length)} of the ${number(ran)} that ran`
    : `First ${number(sample.length)} of ${number(count)}`;
}

const CHILD_STATES = { SUCCEEDED: "completed", FAILED: "failed", RUNNING: "in_flight", CANCELLED: "cancelled" };

/** An item of the batch and, after a sample, what came of it. */
function childView({ custom_id: id, item, status, error, result }) {
  return h(
    "div.child",
    status in CHILD_STATES && badge(CHILD_STATES[status]),
    bodyView(id, item),
    error && h("p.notice.bad", h("span", h("code.code", error.code), error.message)),
    result !== null && result !== undefined && bodyView(`Result of ${id}`, result),
  );
}
