// Files: drop one here, watch its upload, and open it to check it and create a batch.

import { get, queryString } from "../api.js";
import { h } from "../dom.js";
import { bytes, number, percent, plural, time } from "../format.js";
import { icon } from "../icons.js";
import { emptyState, errorNotice } from "../notices.js";
import { badge } from "../status.js";
import { pager, table } from "../table.js";
import { upload } from "../upload.js";

const COLUMNS = [
  {
    label: "File",
    class: "name",
    cell: (file) => [
      h("a.row-link", { href: `/ui/files/${file.id}` }, file.name),
      h("div.meta", isInput(file) ? (file.models ?? []).join(", ") : "output of a batch"),
    ],
  },
  { label: "Check", cell: (file) => isInput(file) && checkBadge(file.problems) },
  { label: "Lines", class: "number", cell: ({ lines }) => number(lines) },
  { label: "Size", class: "number", cell: (file) => bytes(file.bytes) },
  { label: "Uploaded", class: "number", cell: (file) => time(file.created_at) },
];

/** Others were written by batches, and no batch can run over them. */
export function isInput({ purpose }) {
  return purpose === "batch";
}

export function checkBadge(problems) {
  return problems ? badge("failed", plural(problems, "problem")) : badge("ok", "Valid");
}

export function filesPage({ query, go, redraw, reload }) {
  const address = (changes) => `/ui/files${queryString({ ...query, ...changes })}`;
  // Uploads of this visit: {name, share, error}.
  const uploads = [];

  async function add(files) {
    for (const file of files) {
      const entry = { name: file.name, share: 0, error: null };
      uploads.push(entry);
      redraw();
      try {
        const made = await upload(file, (share) => ((entry.share = share), redraw()));
        uploads.splice(uploads.indexOf(entry), 1);
        if (files.length === 1) return go(`/ui/files/${made.id}`);
        await reload();
      } catch (error) {
        if (error.status === undefined) throw error;
        entry.error = error;
        redraw();
      }
    }
  }

  const drop = {
    ondragover: (event) => (event.preventDefault(), event.currentTarget.classList.add("over")),
    ondragleave: (event) => event.currentTarget.classList.remove("over"),
    ondrop: (event) => (
      event.preventDefault(),
      event.currentTarget.classList.remove("over"),
      add([...event.dataTransfer.files])
    ),
  };

  return {
    title: "Files",
    load: (signal) => get("files", { limit: 50, ...query }, signal),
    view: (list) =>
      h(
        "section",
        h("header.page", h("h1", "Files")),
        h(
          "label.drop",
          drop,
          icon("upload"),
          h("b", "Drop a file here, or choose one"),
          h("span.meta", "JSON Lines, one request per line: custom_id, method, url, body"),
          h("input.visually-hidden", {
            type: "file",
            accept: ".jsonl,.json,.ndjson,application/jsonl",
            multiple: true,
            onchange: (event) => add([...event.target.files]),
          }),
        ),
        uploads.map(uploadView),
        h(
          "div.card",
          table({
            caption: "Files",
            columns: COLUMNS,
            rows: list.data,
            key: ({ id }) => id,
            empty: emptyState("No files yet", "Drop a file above. Each line of it is one request."),
          }),
        ),
        pager(list, address, ["file", "files"]),
      ),
  };
}

function uploadView({ name, share, error }) {
  if (error) return h("div.card", h("b", name), errorNotice(error));
  return h(
    "div.card.upload",
    h("b", name),
    h("progress", { max: 1, value: share, "aria-label": `Upload of ${name}` }),
    h("span.meta", { role: "status" }, share < 1 ? percent(share, 1) : "Checking the lines"),
  );
}
