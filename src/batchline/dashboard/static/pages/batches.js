// The list of batches: search, filters, sort and paging are in the address; actions apply to ticked rows or to all
// that match.

import { get, queryString } from "../api.js";
import { BATCH_COLUMNS, updateRow } from "../batch_columns.js";
import { bulkActions } from "../bulk_actions.js";
import { h } from "../dom.js";
import { filterForm, searchField, textField } from "../filters.js";
import { total } from "../format.js";
import { emptyState } from "../notices.js";
import { BATCH_STATUSES, word } from "../status.js";
import { pager, table } from "../table.js";

const FILTERS = ["q", "status", "kind", "model", "created_after", "created_before"];
const KINDS = [
  ["", "All kinds"],
  ["batch", "Batches"],
  ["operation", "Operations"],
];
const PERIODS = [
  ["", "Any time"],
  ["1", "Last 24 hours"],
  ["7", "Last 7 days"],
  ["30", "Last 30 days"],
];

export function batchesPage({ query, go, redraw }) {
  const ticked = new Set();
  // Everything that matches is selected, also beyond this page.
  let all = false;
  let fresh = new Set();
  const address = (changes) => `/ui/batches${queryString({ ...query, cursor: null, ...changes })}`;
  const filter = Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));
  const change = (changes) => go(address(changes), { replace: true });

  function filters() {
    const chosen = new Set((query.status ?? "").split(",").filter(Boolean));
    const toggle = (status) => {
      const next = new Set(chosen);
      if (!next.delete(status)) next.add(status);
      return address({ status: [...next].join(",") });
    };
    const chip = (status) =>
      h("a.chip", { href: toggle(status), "aria-current": chosen.has(status) ? "true" : null }, word(status));
    return filterForm(
      searchField("q", "Name, file or id", query, change),
      h(
        "ul.chips",
        { "aria-label": "Status" },
        BATCH_STATUSES.map((status) => h("li", chip(status))),
      ),
      h(
        "div.more-filters",
        choice("kind", "Kind", KINDS, query.kind),
        textField("model", "Model", query, change),
        choice("created", "Created", PERIODS, query.created),
        Object.keys(query).length > 0 && h("a", { href: "/ui/batches" }, "Clear"),
      ),
    );
  }

  function choice(name, label, options, value = "") {
    return h(
      "select",
      {
        name,
        "aria-label": label,
        onchange: (event) =>
          go(address(name === "created" ? period(event.target.value) : { [name]: event.target.value })),
      },
      options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
    );
  }

  function choose(everything) {
    all = everything;
    ticked.clear();
    redraw();
  }

  function set(ids, on) {
    all = false;
    ids.forEach((id) => (on ? ticked.add(id) : ticked.delete(id)));
    redraw();
  }

  const tick = (rows) => ({
    has: (id) => all || ticked.has(id),
    change: (id, on) => set([id], on),
    all: (on) =>
      set(
        rows.map(({ id }) => id),
        on,
      ),
  });

  function view(list) {
    const sorting = {
      sort: query.sort ?? "created",
      order: query.order ?? "desc",
      address: (sort, order) => address({ sort, order }),
    };
    const filtered = Object.keys(filter).length > 0;
    const empty = filtered
      ? emptyState("No batch matches", "Remove a filter, or search for a part of the name.")
      : emptyState(
          "No batches yet",
          "Upload a file on the page Files, or run one from a terminal:",
          "batchline run requests.jsonl",
        );
    return h(
      "section",
      h(
        "header.page",
        h("h1", "Batches"),
        h("span.meta", total(list.total)),
        h("a.button", { href: "/ui/actions" }, "Bulk actions"),
        h("a.button.primary", { href: "/ui/files" }, "New batch"),
      ),
      filters(),
      fresh.size > 0 &&
        h("p.fresh", { role: "status" }, h("a.button", { href: address({}) }, `Show ${fresh.size} new`)),
      list.data.length > 0 && bulkActions({ ticked, all, total: list.total, filter, choose, go }),
      h(
        "div.card",
        table({
          caption: "Batches",
          columns: BATCH_COLUMNS,
          rows: list.data,
          key: ({ id }) => id,
          tick: tick(list.data),
          sorting,
          empty,
        }),
      ),
      pager(list, address, ["batch", "batches"]),
    );
  }

  return {
    title: "Batches",
    load: async (signal) => {
      const { created: _, ...sent } = query;
      const list = await get("batches", { limit: 50, ...sent }, signal);
      fresh = new Set();
      return list;
    },
    view,
    watch: (list) => list.data.map(({ id }) => id),
    events: {
      batch: (list, event) => {
        const rows = updateRow(list.data, event);
        if (rows) return { ...list, data: rows };
        // New batches wait behind a button, so that no row moves.
        if (!event.created_at || filterHides(query) || list.data.some(({ created_at: at }) => at >= event.created_at))
          return undefined;
        fresh.add(event.id);
        return { ...list };
      },
    },
  };
}

function filterHides(query) {
  return FILTERS.some((name) => query[name]) || query.cursor || (query.sort && query.sort !== "created");
}

/** `created` is only for the address; the server gets the moment. */
function period(days) {
  return { created: days, created_after: days ? new Date(Date.now() - days * 86400000).toISOString() : "" };
}
