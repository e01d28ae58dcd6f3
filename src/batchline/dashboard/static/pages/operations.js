// Operations: approvals that wait for a decision, with what will happen, and the operations that run.

import { get, queryString } from "../api.js";
import { approvalView } from "../approval.js";
import { OPERATION_COLUMNS, batchAddress, updateRow } from "../batch_columns.js";
import { h } from "../dom.js";
import { emptyState } from "../notices.js";
import { pager, table } from "../table.js";

export function operationsPage({ query, reload }) {
  const address = (changes) => `/ui/operations${queryString({ ...query, ...changes })}`;
  return {
    title: "Operations",
    load: async (signal) => {
      const [approvals, running] = await Promise.all([
        get("approvals", {}, signal),
        get("batches", { kind: "operation", limit: 50, ...query }, signal),
      ]);
      return { approvals, running };
    },
    view: ({ approvals, running }) =>
      h(
        "section",
        h("header.page", h("h1", "Operations")),
        h("h2", "Pending approvals"),
        approvals.data.length
          ? h(
              "ul.approvals",
              approvals.data.map((approval) =>
                h("li", { "data-key": approval.id }, approvalView(approval, approvalTitle(approval), reload)),
              ),
            )
          : h(
              "div.card",
              emptyState(
                "No pending approvals",
                "Batches of operations that need one are shown here until somebody decides.",
              ),
            ),
        h("h2", "Operations"),
        h(
          "div.card",
          table({
            caption: "Batches of operations",
            columns: OPERATION_COLUMNS,
            rows: running.data,
            key: ({ id }) => id,
            empty: emptyState(
              "No operations yet",
              "Submit one with the API, or from a terminal:",
              "batchline ops submit OPERATION items.json",
            ),
          }),
        ),
        pager(running, address, ["operation", "operations"]),
      ),
    watch: ({ running }) => running.data.map(({ id }) => id),
    events: {
      batch: (data, event) => {
        const rows = updateRow(data.running.data, event);
        const known = data.running.data.find(({ id }) => id === event.id);
        // Somebody else may have decided, or a new batch may wait.
        if (known ? (event.status ?? known.status) !== known.status : event.kind === "operation") reload();
        return rows && { ...data, running: { ...data.running, data: rows } };
      },
    },
  };
}

function approvalTitle({ id, operation }) {
  return h("h3", h("a", { href: batchAddress(id) }, operation));
}
