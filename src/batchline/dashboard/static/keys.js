// Keyboard shortcuts. They are off while the user types, and with Ctrl, Alt or Meta.

import { h } from "./dom.js";
import { ask } from "./dialog.js";

const SHORTCUTS = [
  ["/", "Search"],
  ["j", "Next row"],
  ["k", "Previous row"],
  ["Enter", "Open the row"],
  ["x", "Select the row"],
  ["Esc", "Close, or leave the field"],
  ["?", "This help"],
];

export function listenForKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const act = ACTS[event.key];
    if (act?.(event) === true) event.preventDefault();
  });
}

const ACTS = {
  "/": () => focus(document.querySelector("input[type=search]")),
  j: () => move(1),
  k: () => move(-1),
  x: () => {
    const box = currentRow()?.querySelector("input[type=checkbox]");
    box?.click();
    return Boolean(box);
  },
  "?": () => {
    showHelp();
    return true;
  },
};

function currentRow() {
  return document.activeElement?.closest("tr[data-key]");
}

function move(step) {
  const links = [...document.querySelectorAll("tr[data-key] a.row-link")];
  const now = links.indexOf(currentRow()?.querySelector("a.row-link"));
  return focus(links[now < 0 ? 0 : Math.min(links.length - 1, Math.max(0, now + step))]);
}

function focus(node) {
  node?.focus();
  node?.select?.();
  return Boolean(node);
}

export function showHelp() {
  const rows = SHORTCUTS.map(([key, what]) => h("div", h("dt", h("kbd", key)), h("dd", what)));
  return ask({ title: "Keyboard", body: h("dl.shortcuts", rows), confirm: "OK", act: () => true });
}
