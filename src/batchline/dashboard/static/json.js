// A JSON value as indented text with colours for keys and values. Every part is a text node.

import { h } from "./dom.js";
import { copyable } from "./copy.js";
import { bytes } from "./format.js";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
// Beyond this, colours would make the page slow.
const COLOURED_CHARS = 100000;

/** A body: JSON, text, null, or {text, cut, bytes} for one that is not JSON, or so large that only its start is sent. */
export function bodyView(title, body, none) {
  const cut = body?.cut === true;
  const text =
    body === null || body === undefined
      ? null
      : typeof body.cut === "boolean" && typeof body.text === "string"
        ? body.text
        : typeof body === "string"
          ? body
          : JSON.stringify(body, null, 2);
  return h(
    "section.body-view",
    h("header", h("h2", title), text !== null && copyable(text, "Copy")),
    cut && h("p.meta", `Only the start is shown; the whole has ${bytes(body.bytes)}.`),
    text === null
      ? h("p.meta", none)
      : h("pre", { tabindex: "0", role: "region", "aria-label": title }, h("code", coloured(text))),
  );
}

function coloured(text) {
  if (text.length > COLOURED_CHARS) return text;
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    nodes.push(text.slice(end, match.index), token(match));
    end = match.index + match[0].length;
  }
  return [...nodes, text.slice(end)];
}

function token([whole, string, colon]) {
  if (colon) return [h("span.json-key", string), colon];
  return h(string ? "span.json-string" : "span.json-value", whole);
}
