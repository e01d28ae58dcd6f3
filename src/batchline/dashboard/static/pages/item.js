// One item: request and answer side by side, its attempts with where their time went, and the request as curl.

import { get } from "../api.js";
import { batchAddress } from "../batch_columns.js";
import { copyable } from "../copy.js";
import { h, s } from "../dom.js";
import { clock, milliseconds, number, time } from "../format.js";
import { bodyView } from "../json.js";
import { badge } from "../status.js";

// Parts of an attempt's time, in order.
const PARTS = [
  ["waiting_ms", "Waiting in the worker", "ended-fill"],
  ["limit_ms", "Waiting for the limit", "throttled"],
  ["backoff_ms", "Back-off before a retry", "retrying"],
  ["upstream_ms", "Upstream", "in_flight"],
  ["settling_ms", "Storing the result", "completed"],
  ["held_ms", "At a worker now", "held"],
];

export function itemPage({ params }) {
  const line = Number(params.line);
  const neighbour = (other, label, rel) =>
    h("a.button", { href: `${batchAddress(params.id, "items")}/${other}`, rel }, label);
  return {
    title: "Item",
    key: `item ${params.id} ${params.line}`,
    load: (signal) =>
      get(`batches/${encodeURIComponent(params.id)}/items/${encodeURIComponent(params.line)}`, {}, signal),
    view: (item) =>
      h(
        "section",
        h(
          "nav.crumbs",
          { "aria-label": "Breadcrumb" },
          h("a", { href: "/ui/batches" }, "Batches"),
          " / ",
          h("a", { href: batchAddress(params.id) }, "Batch"),
          " / ",
          h("a", { href: batchAddress(params.id, "items") }, "Items"),
        ),
        h(
          "header.page",
          h("h1", item.custom_id),
          badge(item.state),
          h("span.meta", `line ${number(item.line)}`),
          h(
            "div.actions",
            item.curl && copyable(item.curl, "Copy as curl"),
            line > 1 && neighbour(line - 1, "Previous", "prev"),
            neighbour(line + 1, "Next", "next"),
          ),
        ),
        item.code && h("p.notice.bad", h("span", h("code.code", item.code), item.message)),
        h(
          "div.columns",
          h("div.card", bodyView("Request", item.request, "The request has been deleted.")),
          h("div.card", bodyView("Answer", item.answer, "There is no answer yet.")),
        ),
        h(
          "div.card",
          h("header", h("h2", "Attempts"), partLegend(item)),
          item.attempts.length
            ? h(
                "ol.attempts",
                item.attempts.map((attempt) => attemptView(attempt, longest(item))),
              )
            : h("p.meta", "It has not been sent yet."),
        ),
      ),
  };
}

const span = (attempt) => PARTS.reduce((sum, [name]) => sum + (attempt[name] ?? 0), 0);

function longest({ attempts }) {
  return Math.max(1, ...attempts.map(span));
}

function partLegend({ attempts }) {
  const used = PARTS.filter(([name]) => attempts.some((attempt) => attempt[name]));
  return h(
    "ul.legend",
    used.map(([, label, kind]) => h("li", h(`span.swatch.${kind}`), label)),
  );
}

function attemptView(attempt, scale) {
  let x = 0;
  const rects = PARTS.map(([name, , kind]) => {
    const width = (1000 * (attempt[name] ?? 0)) / scale;
    const rect = s(`rect.part.${kind}`, { x: x.toFixed(1), width: width.toFixed(1), height: 8 });
    x += width;
    return rect;
  });
  const said = PARTS.filter(([name]) => attempt[name]).map(
    ([name, label]) => `${label} ${milliseconds(attempt[name])}`,
  );
  return h(
    "li",
    h(
      "div",
      h("b", `Attempt ${attempt.n}`),
      " ",
      attempt.code ? h("code.code", attempt.code) : badge(attempt.ended_at ? "completed" : "in_flight"),
      h(
        "span.meta",
        attempt.began_at && [`${clock(attempt.began_at)}, `, time(attempt.began_at), " · "],
        milliseconds(span(attempt)),
      ),
    ),
    s(
      "svg.progress",
      { viewBox: "0 0 1000 8", preserveAspectRatio: "none", role: "img", "aria-label": said.join(", ") },
      rects,
    ),
    h("p.meta", said.join(" · ")),
    attempt.message && h("p", attempt.message),
  );
}
