// Tab Failures: lines that failed or are retried, grouped by cause, with an example and a retry of the group.

import { retryCause } from "../../batch_actions.js";
import { batchAddress } from "../../batch_columns.js";
import { h } from "../../dom.js";
import { number, percent, plural } from "../../format.js";
import { icon } from "../../icons.js";

export const failuresTab = {
  view: (batch, _loaded, { changed }) => {
    if (!batch.failures.length)
      return h(
        "div.card.empty",
        h("p.empty-title", "Nothing has failed"),
        h("p", "Lines that fail are grouped here by their cause."),
      );
    const mayRetry = batch.actions.includes("retry");
    return h(
      "div.stack",
      !mayRetry && batch.counts.failed > 0 && h("p.meta", "Failed lines can be retried when the batch has ended."),
      h(
        "ul.causes",
        batch.failures.map((failure) => cause(batch, failure, mayRetry, changed)),
      ),
    );
  },
};

function cause(batch, failure, mayRetry, changed) {
  const items = `${batchAddress(batch.id, "items")}?state=failed&cause=${encodeURIComponent(failure.key)}`;
  return h(
    "li.card.cause",
    { "data-key": failure.key },
    failure.count > 0
      ? h(
          "div.cause-count",
          h("b", { "data-live": true }, number(failure.count)),
          h("span.meta", percent(failure.count, batch.counts.total)),
        )
      : h(
          "div.cause-count",
          h("b.warn-text", { "data-live": true }, number(failure.retrying)),
          h("span.meta", "retrying"),
        ),
    h(
      "div.cause-what",
      h("p", failure.code && h("code.code", failure.code), failure.message),
      h(
        "p.meta",
        failure.example_custom_id && [
          "Example: ",
          h(
            "a",
            { href: `${batchAddress(batch.id, "items")}?q=${encodeURIComponent(failure.example_custom_id)}` },
            failure.example_custom_id,
          ),
        ],
        failure.count > 0 && [" · ", h("a", { href: items }, `Show ${plural(failure.count, "line")}`)],
        failure.retrying > 0 && [
          " · ",
          h(
            "a.warn-text",
            { href: `${batchAddress(batch.id, "items")}?state=retrying` },
            icon("retry"),
            `${number(failure.retrying)} retrying`,
          ),
        ],
      ),
    ),
    mayRetry &&
      failure.count > 0 &&
      h("button", { type: "button", onclick: () => retryCause(batch, failure, changed) }, "Retry this group"),
  );
}
