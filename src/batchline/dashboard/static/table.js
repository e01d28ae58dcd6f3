// Tables that become cards on a phone, with sorting and paging in the address, and rows that a user can tick.

import { h } from "./dom.js";
import { NONE, total } from "./format.js";

/** columns: [{label, cell(row), class?, sort?}]. A row needs `key(row)`; its first link with row-link opens it.
 *
 * `tick` is {has(key), change(key, on), all(on)} for check boxes. `sorting` is {sort, order, address(sort, order)}.
 */
export function table({ caption, columns, rows, key, tick, sorting, empty }) {
  if (!rows.length && empty) return empty;
  return h(
    "table",
    { role: "table" },
    h("caption.visually-hidden", caption),
    h(
      "thead",
      { role: "rowgroup" },
      h(
        "tr",
        { role: "row" },
        tick && headBox(tick, rows, key),
        columns.map((column) => heading(column, sorting)),
      ),
    ),
    h(
      "tbody",
      { role: "rowgroup" },
      rows.map((row) => tableRow(row, columns, key(row), tick)),
    ),
  );
}

/** A table in a card. */
export function card(caption, columns, rows, key, empty) {
  return h("div.card", table({ caption, columns, rows, key, empty }));
}

function heading({ label, class: kind, sort }, sorting) {
  const sorted = sorting && sort && sorting.sort === sort;
  const direction = sorted && (sorting.order === "asc" ? "ascending" : "descending");
  const content =
    sort && sorting
      ? h(
          "a",
          { href: sorting.address(sort, sorted && sorting.order === "desc" ? "asc" : "desc") },
          label,
          sorted && h("span", { "aria-hidden": "true" }, direction === "ascending" ? " ↑" : " ↓"),
        )
      : label;
  return h("th", { role: "columnheader", scope: "col", class: kind ?? "", "aria-sort": direction || null }, content);
}

function headBox(tick, rows, key) {
  const all = rows.length > 0 && rows.every((row) => tick.has(key(row)));
  return h(
    "th.box",
    { role: "columnheader", scope: "col" },
    h("input", {
      type: "checkbox",
      checked: all,
      "aria-label": "Select all rows of this page",
      onchange: (event) => tick.all(event.target.checked),
    }),
  );
}

function tableRow(row, columns, key, tick) {
  return h(
    "tr",
    { role: "row", "data-key": key, class: tick?.has(key) ? "ticked" : "" },
    tick &&
      h(
        "td.box",
        { role: "cell" },
        h("input", {
          type: "checkbox",
          checked: tick.has(key),
          "aria-label": `Select ${key}`,
          onchange: (event) => tick.change(key, event.target.checked),
        }),
      ),
    columns.map((column) => tableCell(column, row)),
  );
}

function tableCell(column, row) {
  const cell = h("td", { role: "cell", class: column.class ?? "", "data-label": column.label }, column.cell(row));
  // Cards leave out what says nothing.
  if (cell.textContent === NONE) cell.dataset.none = "";
  return cell;
}

/** Links to the previous and the next page, and the total of [one, many]. `address` makes a link from changes of the query. */
export function pager(list, address, [one, many]) {
  const count = list.total ? `${total(list.total)} ${list.total.count === 1 ? one : many}` : null;
  const link = (label, cursor, rel) =>
    cursor
      ? h("a.button", { href: address({ cursor }), rel }, label)
      : h("span.button.disabled", { "aria-disabled": "true" }, label);
  return h(
    "nav.pager",
    { "aria-label": "Pages" },
    h("span.meta", count),
    link("Previous", list.previous, "prev"),
    link("Next", list.next, "next"),
  );
}
