// Tab Output: the files of a batch to download, and the start of the output.

import { text } from "../../api.js";
import { h } from "../../dom.js";
import { bytes } from "../../format.js";
import { icon } from "../../icons.js";
import { bodyView } from "../../json.js";

const PREVIEW_BYTES = 16384;
const PREVIEW_LINES = 10;
const NAMES = { output: "Output", errors: "Errors", input: "Input" };

export const fileContent = (id) => `/v1/files/${encodeURIComponent(id)}/content`;

export const outputTab = {
  view: (batch) => {
    const files = Object.keys(NAMES).filter((kind) => batch.files[kind]);
    return h(
      "div.columns.uneven.reverse",
      h(
        "div.card",
        h("header", h("h2", "Downloads")),
        h(
          "ul.downloads",
          files.map((kind) => download(kind, batch.files[kind])),
        ),
      ),
      batch.files.output
        ? preview(batch.files.output)
        : h(
            "div.card.empty",
            h("p.empty-title", "No output yet"),
            h("p", "Results can be downloaded as soon as the first line is completed."),
          ),
    );
  },
};

function download(kind, file) {
  return h(
    "li",
    h("a.button", { href: fileContent(file.id), download: file.name }, icon("download"), NAMES[kind]),
    h("span.meta", [file.name, file.bytes && bytes(file.bytes)].filter(Boolean).join(" · ")),
  );
}

/** Loaded when the user opens it: the output may be large. */
function preview(file) {
  const load = async ({ currentTarget }) => {
    const frame = currentTarget.parentElement;
    const start = await firstLines(file.id);
    frame.replaceChildren(...start.map((line, index) => bodyView(`Line ${index + 1}`, line)));
  };
  return h(
    "div.card",
    h("header", h("h2", "Preview")),
    h(
      "div.preview",
      { "data-own": true },
      h("button", { type: "button", onclick: load }, `Show the first ${PREVIEW_LINES} lines`),
    ),
  );
}

/** The first lines of a file as values, or as text where a line is not JSON or is cut. */
export async function firstLines(id, count = PREVIEW_LINES) {
  const start = await text(fileContent(id), { range: `bytes=0-${PREVIEW_BYTES - 1}` });
  return start
    .split("\n")
    .slice(0, count)
    .filter(Boolean)
    .map((line) => {
      try {
        return JSON.parse(line);
      } catch {
        return line;
      }
    });
}
