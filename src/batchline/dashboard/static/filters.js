// Fields that filter a list. What the user types is in the address a moment after the last key.

import { h } from "./dom.js";
import { icon } from "./icons.js";

const TYPING_MS = 250;
let typing = null;

/** A search field. `/` moves the focus here. `change` gets {name: text}. */
export function searchField(name, label, query, change) {
  return h("div.search", icon("search"), input("search", name, label, query, change));
}

export function textField(name, label, query, change) {
  return input("text", name, label, query, change);
}

function input(type, name, label, query, change) {
  return h("input", {
    type,
    name,
    value: query[name] ?? "",
    placeholder: label,
    "aria-label": label,
    oninput: ({ target }) => {
      clearTimeout(typing);
      typing = setTimeout(() => change({ [name]: target.value }), TYPING_MS);
    },
  });
}

/** The form around the fields. It needs no button: every change applies at once. */
export function filterForm(...fields) {
  return h("form.filters", { role: "search", onsubmit: (event) => event.preventDefault() }, fields);
}
