// Bulk actions: the list of them, and one with its progress. They run on the server, also when this page is closed.

import { get, post, queryString } from "../api.js";
import { batchAddress } from "../batch_columns.js";
import { copyable } from "../copy.js";
import { h, s } from "../dom.js";
import { number, percent, plural, shortId, time } from "../format.js";
import { emptyState, toast } from "../notices.js";
import { badge, word } from "../status.js";
import { pager, table } from "../table.js";

export function actionsPage({ query }) {
  const address = (changes) => `/ui/actions${queryString({ ...query, ...changes })}`;
  const columns = [
    {
      label: "Action",
      class: "name",
      cell: (action) => [
        h("a.row-link", { href: `/ui/actions/${action.id}` }, title(action)),
        h("div.meta", filterText(action.filter)),
      ],
    },
    { label: "State", cell: ({ state }) => badge(state) },
    { label: "Done", class: "wide", cell: bar },
    { label: "Failed", class: "number", cell: ({ failed_count: count }) => number(count) },
    { label: "By", cell: ({ created_by: user }) => user },
    { label: "Started", class: "number", cell: ({ created_at: at }) => time(at) },
  ];
  return {
    title: "Bulk actions",
    load: (signal) => get("actions", query, signal),
    view: (list) =>
      h(
        "section",
        h("header.page", h("h1", "Bulk actions")),
        h(
          "div.card",
          table({
            caption: "Bulk actions",
            columns,
            rows: list.data,
            key: ({ id }) => id,
            empty: emptyState(
              "No bulk actions yet",
              "Filter the list of batches and choose an action for all that match.",
            ),
          }),
        ),
        pager(list, address, ["action", "actions"]),
      ),
    events: {
      action: (list, event) =>
        list.data.some(({ id }) => id === event.id)
          ? { ...list, data: list.data.map((each) => (each.id === event.id ? { ...each, ...event } : each)) }
          : undefined,
    },
  };
}

export function actionPage({ params, reload }) {
  async function cancel() {
    await post(`actions/${params.id}/cancel`);
    toast("Stopped. Batches that were already changed stay changed.");
    reload();
  }

  return {
    title: "Bulk action",
    load: (signal) => get(`actions/${encodeURIComponent(params.id)}`, {}, signal),
    view: (action) =>
      h(
        "section",
        h(
          "nav.crumbs",
          { "aria-label": "Breadcrumb" },
          h("a", { href: "/ui/batches" }, "Batches"),
          " / ",
          h("a", { href: "/ui/actions" }, "Bulk actions"),
        ),
        h(
          "header.page",
          h("h1", title(action)),
          badge(action.state),
          copyable(action.id),
          action.state === "running" && h("button.danger-text", { type: "button", onclick: cancel }, "Stop"),
        ),
        h(
          "div.card",
          bar(action),
          h(
            "p.meta",
            { "aria-live": "polite" },
            `${number(action.done + action.failed_count)} of ${plural(action.matching, "batch", "batches")} done · started by ${action.created_by} `,
            time(action.created_at),
            ` · ${filterText(action.filter)}`,
          ),
        ),
        action.failed_count > 0 &&
          h(
            "div.card",
            h("header", h("h2", `${plural(action.failed_count, "batch", "batches")} not changed`)),
            table({
              caption: "Batches that were not changed",
              columns: FAILED,
              rows: action.failed,
              key: ({ id }) => id,
            }),
          ),
      ),
    events: { action: (data, event) => (event.id === data.id ? { ...data, ...event } : undefined) },
  };
}

const FAILED = [
  {
    label: "Batch",
    class: "name",
    cell: ({ id }) => h("a.row-link", { href: batchAddress(id), title: id }, shortId(id)),
  },
  { label: "Reason", class: "wide", cell: ({ reason }) => reason },
];

function title({ action, matching, value }) {
  const verb = action === "priority" ? `Priority ${value}:` : action[0].toUpperCase() + action.slice(1);
  return `${verb} ${plural(matching, "batch", "batches")}`;
}

const FILTER_WORDS = { q: "search", created_after: "created after", created_before: "created before" };
const filterValue = (value) => (/^\d{4}-\d\d-\d\dT/.test(value) ? value.slice(0, 16).replace("T", " ") : word(value));

function filterText(filter) {
  if (filter.ids) return `${number(filter.ids.length)} selected`;
  const given = Object.entries(filter).filter(([, value]) => value !== null);
  const parts = given.map(
    ([name, value]) => `${FILTER_WORDS[name] ?? name} ${[value].flat().map(filterValue).join(" or ")}`,
  );
  return parts.join(", ") || "all batches";
}

/** `done` were changed, `failed` were not. */
function bar({ done, failed_count: failed, matching }) {
  const width = (count) => ((1000 * count) / Math.max(1, matching)).toFixed(1);
  return h(
    "div.progress-cell",
    s(
      "svg.progress",
      {
        viewBox: "0 0 1000 8",
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${number(done)} of ${number(matching)} changed, ${number(failed)} not changed`,
      },
      s("rect.part.completed", { width: width(done), height: 8 }),
      s("rect.part.failed", { x: width(done), width: width(failed), height: 8 }),
    ),
    h("span", { "data-live": true }, percent(done + failed, matching)),
  );
}
