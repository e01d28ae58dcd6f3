// Actions on one batch. Each says in numbers what will happen before it does, and shows its result.

import { call, patch, post } from "./api.js";
import { batchAddress, batchName } from "./batch_columns.js";
import { ask, field } from "./dialog.js";
import { h } from "./dom.js";
import { number, plural } from "./format.js";
import { toast } from "./notices.js";

const LABELS = {
  pause: "Pause",
  resume: "Resume",
  release: "Release",
  retry: "Retry",
  cancel: "Cancel",
  delete: "Delete",
};

/** A button for each action that the server says this user may do now. `done` gets the new detail. */
export function actionButtons(batch, done) {
  return Object.keys(LABELS)
    .filter((action) => batch.actions.includes(action))
    .map((action) =>
      h(
        `button${["cancel", "delete"].includes(action) ? ".danger-text" : ""}`,
        { type: "button", onclick: () => ACTIONS[action](batch, done) },
        LABELS[action],
      ),
    );
}

const ACTIONS = {
  pause: (batch, done) =>
    confirm(batch, done, {
      action: "pause",
      title: "Pause batch?",
      body: `${number(batch.counts.in_flight)} in flight will finish. ${plural(waiting(batch), "line")} will wait until you resume.`,
      result: "Paused",
    }),
  resume: (batch, done) =>
    confirm(batch, done, {
      action: "resume",
      title: "Resume batch?",
      body: `${plural(waiting(batch), "line")} will run.`,
      result: "Resumed",
    }),
  cancel: (batch, done) =>
    confirm(batch, done, {
      action: "cancel",
      title: "Cancel batch?",
      body: `${plural(waiting(batch), "line has", "lines have")} not started and will not run. ${number(batch.counts.in_flight)} in flight will finish. Results so far are kept.`,
      label: "Cancel batch",
      danger: true,
      result: "Cancelled",
    }),
  release: (batch, done) =>
    confirm(batch, done, {
      action: "release",
      path: `/api/v1/batches/${batch.id}/release`,
      title: "Release batch?",
      body: `${plural(waiting(batch), "operation")} will run, as soon as an approval that is needed is given. Nothing can be added any more.`,
      result: "Released",
    }),
  retry: (batch, done) => {
    const { failed, cancelled, expired } = batch.counts;
    const lines = failed + cancelled + expired;
    return confirm(batch, done, {
      action: "retry",
      title: "Retry batch?",
      body: `${plural(lines, "line that is", "lines that are")} not completed will run again. Completed lines are kept.`,
      label: `Retry ${plural(lines, "line")}`,
      result: "Retrying",
    });
  },
  delete: (batch, done) =>
    ask({
      title: "Delete batch?",
      body: `${batchName(batch)} and its ${number(done_(batch))} results are deleted. This cannot be undone.`,
      confirm: "Delete batch",
      danger: true,
      act: () => post(`batches/${batch.id}/delete`),
    }).then((deleted) => deleted && (toast(`Deleted: ${batchName(batch)}`), done(null))),
};

const done_ = ({ counts }) => counts.completed + counts.failed;
const waiting = ({ counts }) => counts.pending + counts.retrying;

async function confirm(batch, done, { action, path, title, body, label, danger, result, request }) {
  const detail = await ask({
    title,
    body,
    danger,
    confirm: label ?? LABELS[action],
    act: () => (path ? call("POST", path) : post(`batches/${batch.id}/${action}`, request)),
  });
  if (!detail) return;
  toast(`${result}: ${batchName(batch)}`);
  done(detail);
}

/** Run the lines of one cause again. */
export function retryCause(batch, failure, done) {
  return confirm(batch, done, {
    action: "retry",
    title: "Retry this group?",
    body: [
      h("p", `${plural(failure.count, "line")} failed with:`),
      h("blockquote", failure.message),
      h("p", "Only these lines run again."),
    ],
    label: `Retry ${plural(failure.count, "line")}`,
    result: `Retrying ${plural(failure.count, "line")} of`,
    request: { causes: [failure.key] },
  });
}

/** Approve or reject what waits for approval. An approval names the digest of what the user has seen. */
export async function decide(request, decision, done) {
  const lines = plural(request.count, "operation");
  const approves = decision === "approve";
  const label = approves ? "Approve" : "Reject";
  const decided = await ask({
    title: `${label} ${request.operation}?`,
    body: approves ? request.consequence : `${lines} will not run.`,
    fields: field(
      "Reason",
      h("textarea", { name: "reason", rows: 2, required: !approves, maxlength: 2000 }),
      "It is kept in the audit log.",
    ),
    confirm: `${label} ${lines}`,
    danger: !approves,
    act: ({ reason }) =>
      call("POST", `/api/v1/batches/${request.id}/${decision}`, {
        body: approves ? { reason: reason || null, content_digest: request.content_digest } : { reason },
      }),
  });
  if (decided)
    toast(`${approves ? "Approved" : "Rejected"}: ${request.operation}`, { link: ["Open", batchAddress(request.id)] });
  // Also without a decision: what is shown may have changed.
  done();
}

/** Change settings of a running batch. */
export async function change(batch, values, done) {
  const detail = await patch(`batches/${batch.id}`, values);
  toast("Settings saved. They apply to the next requests.");
  done(detail);
}
