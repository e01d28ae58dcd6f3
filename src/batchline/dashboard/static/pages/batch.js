// One batch: its state and actions at the top, and a tab for each question about it.

import { get } from "../api.js";
import { approvalView } from "../approval.js";
import { actionButtons } from "../batch_actions.js";
import { batchAddress, batchName, deadlineText, isOpen } from "../batch_columns.js";
import { copyable } from "../copy.js";
import { h } from "../dom.js";
import { cost, duration, number, percent, rate, time } from "../format.js";
import { icon } from "../icons.js";
import { announce } from "../notices.js";
import { batchBadge, done, legend, progressBar, word } from "../status.js";
import { failuresTab } from "./batch/failures.js";
import { itemsTab } from "./batch/items.js";
import { outputTab } from "./batch/output.js";
import { settingsTab } from "./batch/settings.js";
import { summaryTab } from "./batch/summary.js";

const TABS = [
  ["overview", "Overview", summaryTab],
  ["failures", "Failures", failuresTab],
  ["items", "Items", itemsTab],
  ["output", "Output", outputTab],
  ["settings", "Settings", settingsTab],
];

/** A tab is {load(batch, query, signal)?, view(batch, loaded, context)}. */
export function batchPage(context) {
  const { params, query, go } = context;
  const [tabName, , tab] = TABS.find(([name]) => name === params.tab) ?? TABS[0];
  // The detail that an action returned replaces the loaded one; null means that the batch is gone.
  const changed = (detail) => (detail === null ? go("/ui/batches") : context.reload());

  return {
    title: "Batch",
    key: `batch ${params.id}`,
    load: async (signal) => {
      const path = `batches/${encodeURIComponent(params.id)}`;
      const [batch, loaded] = await Promise.all([get(path, {}, signal), tab.load?.(path, query, signal)]);
      document.title = `${batchName(batch)} · Batchline`;
      return { batch, loaded };
    },
    view: ({ batch, loaded }) =>
      h(
        "section",
        h("nav.crumbs", { "aria-label": "Breadcrumb" }, h("a", { href: "/ui/batches" }, "Batches")),
        header(batch, changed),
        batch.approval_request && approvalView(batch.approval_request, h("h2", "Approval"), changed),
        h(
          "nav.tabs",
          { "aria-label": "Batch" },
          TABS.map(([name, label]) =>
            h(
              "a",
              {
                href: batchAddress(batch.id, name === "overview" ? "" : name),
                "aria-current": name === tabName ? "page" : null,
              },
              label,
              name === "failures" && batch.counts.failed > 0 && [" ", h("span.count", number(batch.counts.failed))],
            ),
          ),
        ),
        h("div.stack", { "data-key": tabName }, tab.view(batch, loaded, { ...context, changed })),
      ),
    watch: ({ batch }) => [batch.id],
    events: {
      batch: (data, event) => {
        if (event.id !== data.batch.id) return undefined;
        const batch = { ...data.batch, ...event };
        if (spoken(batch) !== spoken(data.batch)) announce(spoken(batch));
        // A change of status changes what one may do, the timeline and the files.
        if (batch.status !== data.batch.status) context.reload();
        return { ...data, batch };
      },
    },
  };
}

function spoken(batch) {
  return `${batchName(batch)}: ${word(batch.status)}, ${percent(done(batch.counts), batch.counts.total)}, ${number(batch.counts.failed)} failed`;
}

function header(batch, changed) {
  return h(
    "div.card.batch-head",
    h(
      "header.page",
      h("h1", batchName(batch)),
      batchBadge(batch),
      copyable(batch.id),
      h("div.actions", actionButtons(batch, changed)),
    ),
    batch.pause && !batch.approval_request && pauseNotice(batch),
    progressBar(batch.counts),
    legend(batch.counts, (state) => `${batchAddress(batch.id, "items")}?state=${state}`),
    facts(batch),
  );
}

function facts(batch) {
  const fact = (label, ...value) => h("div", h("dt", label), h("dd", { "data-live": true }, value));
  return h(
    "dl.facts",
    fact(
      "Done",
      percent(done(batch.counts), batch.counts.total),
      h("span.meta", ` of ${number(batch.counts.total)} lines`),
    ),
    isOpen(batch) && fact("Rate", rate(batch.rate_per_s)),
    isOpen(batch) ? fact("Ends in", duration(batch.eta_s)) : fact("Ended", time(batch.ended_at)),
    isOpen(batch) && fact("Deadline", deadlineText(batch)),
    fact("Created", time(batch.created_at)),
    fact("Cost", cost(batch.cost)),
    fact(batch.kind === "operation" ? "Operation" : "Model", batch.model ?? "several"),
    batch.kind === "batch" && fact("Upstream", batch.upstream ?? "several"),
  );
}

// Why a rule paused the batch, and what to do before it can go on.
const RULES = {
  max_failed: ["because too many lines failed", "Look at the failures, then resume or cancel."],
  alike: ["because the first lines all failed for the same cause", "Look at the failures, then resume or cancel."],
  max_cost: ["because it reached its cost limit", "Resume it to spend more."],
  max_tokens: ["because it reached its token limit", "Resume it to spend more."],
  sample: ["after its sample", "Look at the results, then resume."],
  approval: ["until somebody approves it", ""],
  hold: ["until it is released", "More items can be added until then."],
};

function pauseNotice({ pause: { rule, since } }) {
  const [reason, next] = RULES[rule] ?? [rule ? `by the rule ${rule}` : "by a user", ""];
  return h("p.notice", icon("pause"), h("span", "Paused ", time(since), ` ${reason}. ${next}`));
}
