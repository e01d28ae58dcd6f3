// Tab Audit: who did what and when.

import { get, queryString } from "../../api.js";
import { batchAddress } from "../../batch_columns.js";
import { h } from "../../dom.js";
import { filterForm, searchField, textField } from "../../filters.js";
import { number, shortId, time, words } from "../../format.js";
import { emptyState } from "../../notices.js";
import { card, pager } from "../../table.js";

export const auditTab = {
  label: "Audit",
  load: (query, signal) => get("audit", { limit: 50, ...query }, signal),
  view: (found, { query, go }) => {
    const address = (changes) => `/ui/admin/audit${queryString({ ...query, cursor: null, ...changes })}`;
    const change = (changes) => go(address(changes), { replace: true });
    return [
      filterForm(
        searchField("q", "Batch id or user", query, change),
        h("div.more-filters", textField("actor", "Actor", query, change), textField("action", "Action", query, change)),
      ),
      card(
        "Audit log",
        [
          { label: "Action", class: "name", cell: ({ action }) => h("b", action) },
          { label: "Actor", cell: ({ actor }) => actor },
          {
            label: "Concerns",
            cell: ({ batch_id: id, subject }) =>
              id ? h("a.row-link", { href: batchAddress(id), title: id }, shortId(id)) : subject,
          },
          { label: "Detail", class: "wide", cell: ({ detail }) => detailView(detailText(detail)) },
          { label: "When", class: "number", cell: ({ at }) => time(at) },
        ],
        found.data,
        ({ id }) => String(id),
        emptyState("No entry matches", "Actions of users and of the system are recorded here."),
      ),
      pager(found, address, ["entry", "entries"]),
    ];
  },
};

// A submission names all its items.
const SHORT_CHARS = 160;

function detailView(text) {
  if (text.length <= SHORT_CHARS) return h("span.meta", text);
  return h("details.meta", h("summary", `${text.slice(0, SHORT_CHARS)}…`), h("p", text));
}

function detailText(detail) {
  return Object.entries(detail)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${words(name)}: ${said(value)}`)
    .join(" · ");
}

function said(value) {
  if (typeof value === "number") return number(value);
  return typeof value === "object" ? JSON.stringify(value) : value;
}
