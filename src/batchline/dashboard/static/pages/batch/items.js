// Tab Items: lines with state, attempts and latency, filtered by state, cause or custom_id.

import { get, queryString } from "../../api.js";
import { batchAddress } from "../../batch_columns.js";
import { h } from "../../dom.js";
import { filterForm, searchField } from "../../filters.js";
import { milliseconds, number, time } from "../../format.js";
import { emptyState } from "../../notices.js";
import { ITEM_STATES, badge, word } from "../../status.js";
import { pager, table } from "../../table.js";

export const itemsTab = {
  load: (path, query, signal) => get(`${path}/items`, { limit: 50, ...query }, signal),
  view: (batch, list, { query, go }) => {
    const address = (changes) =>
      `${batchAddress(batch.id, "items")}${queryString({ ...query, cursor: null, ...changes })}`;
    return h(
      "div.stack",
      filters(batch, query, address, go),
      h(
        "div.card",
        table({
          caption: "Items",
          columns: columns(batch),
          rows: list.data,
          key: ({ line }) => String(line),
          empty: emptyState("No item matches", "Choose another state, or search for another part of a custom_id."),
        }),
      ),
      pager(list, address, ["item", "items"]),
    );
  },
};

function columns({ id }) {
  return [
    {
      label: "Item",
      class: "name",
      cell: ({ line, custom_id: custom }) => [
        h("a.row-link", { href: `${batchAddress(id, "items")}/${line}` }, custom),
        h("div.meta", `line ${number(line)}`),
      ],
    },
    { label: "State", cell: ({ state }) => badge(state) },
    { label: "Error", class: "wide", cell: ({ code, message }) => code && [h("code.code", code), message] },
    { label: "Attempts", class: "number", cell: ({ attempts }) => number(attempts) },
    { label: "Latency", class: "number", cell: ({ upstream_ms: value }) => milliseconds(value) },
    { label: "Finished", class: "number", cell: ({ finished_at: at }) => time(at) },
  ];
}

function filters(batch, query, address, go) {
  const change = (changes) => go(address(changes), { replace: true });
  const states = ITEM_STATES.filter((state) => batch.counts[state] || state === query.state);
  const cause = query.cause && batch.failures.find(({ key }) => key === query.cause);
  const chip = (state) =>
    h(
      "a.chip",
      {
        href: address({ state: state === query.state ? null : state, cause: null }),
        "aria-current": state === query.state ? "true" : null,
      },
      `${word(state)} ${number(batch.counts[state])}`,
    );
  return filterForm(
    searchField("q", "Part of a custom_id", query, change),
    h(
      "ul.chips",
      { "aria-label": "State" },
      states.map((state) => h("li", chip(state))),
    ),
    query.cause &&
      h(
        "p",
        "Cause: ",
        h("b", cause ? cause.message : query.cause),
        " ",
        h("a", { href: address({ cause: null }) }, "Clear"),
      ),
  );
}
