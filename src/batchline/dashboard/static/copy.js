// Text that a click copies: ids, commands, requests as curl.

import { h } from "./dom.js";
import { shortId } from "./format.js";
import { icon } from "./icons.js";

const SHOWN_MS = 1500;

/** An id, shortened, with the whole one on hover; or a button with other words. */
export function copyable(text, label) {
  return h(
    "button.copy",
    {
      type: "button",
      title: label ? "Copy" : text,
      "aria-label": `Copy ${label ? "" : text}`.trim(),
      onclick: (event) => copy(text, event.currentTarget),
    },
    h("span", label ?? shortId(text)),
    icon("copy"),
  );
}

async function copy(text, button) {
  const copied = await write(text);
  button.dataset.state = copied ? "Copied" : "Press Ctrl+C";
  setTimeout(() => delete button.dataset.state, SHOWN_MS);
}

/** The clipboard needs a secure context. Without one, the text is selected for the user. */
async function write(text) {
  if (window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (error) {
      if (error.name !== "NotAllowedError") throw error;
    }
  }
  const field = h("textarea.visually-hidden", { "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
}
