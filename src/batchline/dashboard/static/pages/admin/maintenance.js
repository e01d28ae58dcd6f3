// Tab Maintenance: what the regular checks have found.

import { get } from "../../api.js";
import { h } from "../../dom.js";
import { number, time } from "../../format.js";
import { emptyState } from "../../notices.js";
import { badge } from "../../status.js";
import { card } from "../../table.js";

export const findingsTab = {
  label: "Maintenance",
  load: (query, signal) => get("findings", query, signal),
  view: ({ data }) =>
    data.length
      ? card(
          "Findings",
          [
            { label: "Finding", class: "name", cell: ({ check, message }) => [h("b", check), h("div", message)] },
            { label: "Severity", cell: ({ severity }) => badge(severity) },
            { label: "Count", class: "number", cell: ({ count }) => number(count) },
            { label: "Since", class: "number", cell: ({ since }) => time(since) },
          ],
          data,
          ({ check }) => check,
        )
      : h(
          "div.card",
          emptyState(
            "Nothing found",
            "Workers check the database regularly. To check everything now:",
            "batchline doctor",
          ),
        ),
};
