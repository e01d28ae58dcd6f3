// Tab Overview of a batch: rate over time, timeline, and progress by model.

import { lineChart } from "../../chart.js";
import { h } from "../../dom.js";
import { clock, number, time, words } from "../../format.js";
import { progress } from "../../status.js";
import { table } from "../../table.js";

const LANES = [
  { label: "Model", class: "name", cell: ({ model }) => h("b", model) },
  { label: "Progress", class: "wide", cell: ({ counts }) => progress(counts) },
  { label: "Completed", class: "number", cell: ({ counts }) => number(counts.completed) },
  { label: "Retrying", class: "number", cell: ({ counts }) => number(counts.retrying) },
  { label: "Failed", class: "number", cell: ({ counts }) => number(counts.failed) },
  { label: "Lines", class: "number", cell: ({ counts }) => number(counts.total) },
];

export const summaryTab = {
  view: (batch) =>
    h(
      "div.columns.uneven",
      h(
        "div",
        h("div.card", rateChart(batch)),
        batch.lanes.length > 1 &&
          h(
            "div.card",
            h("header", h("h2", "Models")),
            table({ caption: "Progress by model", columns: LANES, rows: batch.lanes, key: ({ model }) => model }),
          ),
      ),
      h(
        "div",
        batch.settings.steps && steps(batch),
        h("div.card", h("header", h("h2", "Timeline")), timeline(batch.timeline)),
      ),
    ),
};

function rateChart({ rate }) {
  return lineChart({
    title: "Rate",
    unit: "/s",
    times: rate.map(([at]) => at),
    series: [{ name: "Completed", class: "completed", area: true, values: rate.map(([, value]) => value) }],
  });
}

function timeline(events) {
  return h(
    "ol.timeline",
    events.map(({ at, what, detail }) =>
      h(
        "li",
        h("b", what),
        " ",
        h("span.meta", { title: clock(at) }, time(at)),
        detail && h("div.meta", words(detail)),
      ),
    ),
  );
}

/** How far a run in steps has come, and why it stopped. */
export function steps({ settings: { steps: plan }, counts }) {
  return h(
    "div.card.steps",
    h("header", h("h2", "Steps"), h("span.meta", plan.plan)),
    h("p", `Step ${plan.step}: ${number(plan.released)} of ${number(counts.total)} lines released.`),
    plan.stopped && h("p.notice.bad", plan.stopped),
    plan.next_at && !plan.stopped && h("p.meta", "Next step ", time(plan.next_at)),
  );
}
