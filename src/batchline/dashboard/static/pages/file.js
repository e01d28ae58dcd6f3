// One file: its problems at their lines, the form that creates a batch, and a playground that tries one line first.

import { call, get, post } from "../api.js";
import { field } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, milliseconds, number, plural, time } from "../format.js";
import { icon } from "../icons.js";
import { bodyView } from "../json.js";
import { errorNotice, toast } from "../notices.js";
import { copyable } from "../copy.js";
import { badge } from "../status.js";
import { table } from "../table.js";
import { fileContent, firstLines } from "./batch/output.js";
import { checkBadge, isInput } from "./files.js";

const ENDPOINTS = ["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/completions", "/v1/moderations"];
const PROBLEMS = [
  { label: "Line", class: "number line-number", cell: ({ line }) => number(line) },
  { label: "Problem", class: "wide", cell: ({ code, message }) => [h("code.code", code), message] },
  { label: "Text", class: "excerpt", cell: ({ excerpt }) => excerpt && h("code", excerpt) },
];

export function filePage({ params, go, redraw }) {
  const id = encodeURIComponent(params.id);
  // What the playground shows: the request as text, and the answer or the error.
  const trial = { text: null, answer: null, error: null, busy: false };

  async function load(signal) {
    const [file, problems, [first]] = await Promise.all([
      get(`files/${id}`, {}, signal),
      get(`files/${id}/problems`, {}, signal),
      firstLines(params.id, 1),
    ]);
    trial.text ??= JSON.stringify(first?.body ?? {}, null, 2);
    return { file, problems: problems.data ?? problems, first };
  }

  async function create(event) {
    event.preventDefault();
    const { endpoint, completion_window, name } = Object.fromEntries(new FormData(event.target));
    const shown = event.target.querySelector(".problem");
    try {
      shown.replaceChildren();
      const batch = await call("POST", "/v1/batches", {
        body: { input_file_id: params.id, endpoint, completion_window, ...(name ? { metadata: { name } } : {}) },
      });
      toast("Batch created.");
      go(`/ui/batches/${batch.id}`);
    } catch (error) {
      if (error.status === undefined) throw error;
      shown.replaceChildren(errorNotice(error));
    }
  }

  async function attempt(event, endpoint) {
    event.preventDefault();
    Object.assign(trial, { text: new FormData(event.target).get("body"), busy: true, answer: null, error: null });
    redraw();
    try {
      trial.answer = await post("playground", { upstream: null, endpoint, body: JSON.parse(trial.text) });
    } catch (error) {
      if (error.status === undefined && !(error instanceof SyntaxError)) throw error;
      trial.error =
        error instanceof SyntaxError ? { message: `The request is not valid JSON: ${error.message}` } : error;
    }
    trial.busy = false;
    redraw();
  }

  function view({ file, problems, first }) {
    const endpoint = file.endpoint ?? first?.url ?? ENDPOINTS[0];
    return h(
      "section",
      h("nav.crumbs", { "aria-label": "Breadcrumb" }, h("a", { href: "/ui/files" }, "Files")),
      h(
        "header.page",
        h("h1", file.name),
        isInput(file) && checkBadge(file.problems || problems.length),
        copyable(file.id),
      ),
      h(
        "p.meta",
        file.lines > 0 && `${plural(file.lines, "line")} · `,
        `${bytes(file.bytes)} · uploaded `,
        time(file.created_at),
        file.models?.length > 0 && ` · ${file.models.join(", ")}`,
      ),
      problems.length > 0 &&
        h(
          "div.card",
          h("header", h("h2", "Problems"), h("span.meta", "Correct these lines and upload the file again.")),
          table({
            caption: "Problems by line",
            columns: PROBLEMS,
            rows: problems,
            key: ({ line, code, message }) => `${line} ${code} ${message}`,
          }),
        ),
      h("p", h("a.button", { href: fileContent(file.id), download: file.name }, icon("download"), "Download")),
      isInput(file) &&
        h("div.columns", !problems.length && createForm(file, endpoint, create), playground(trial, endpoint, attempt)),
    );
  }

  return { title: "File", key: `file ${params.id}`, load, view };
}

function createForm(file, endpoint, create) {
  return h(
    "form.card",
    { onsubmit: create },
    h("header", h("h2", "Create a batch")),
    field("Name", h("input", { name: "name", maxlength: 200, placeholder: file.name })),
    field(
      "Endpoint",
      h(
        "select",
        { name: "endpoint" },
        [...new Set([endpoint, ...ENDPOINTS])].map((each) =>
          h("option", { value: each, selected: each === endpoint }, each),
        ),
      ),
    ),
    field(
      "Deadline",
      h(
        "select",
        { name: "completion_window" },
        file.completion_windows.map((value) => h("option", { value }, windowText(value))),
      ),
      "Lines that have not run by then expire.",
    ),
    h("div.problem", { "data-own": true }),
    h("button.primary", { type: "submit" }, `Create batch of ${plural(file.lines ?? 0, "line")}`),
  );
}

/** 24h becomes 24 hours. */
function windowText(window) {
  const [, count, unit] = /^(\d+)([mhd])$/.exec(window) ?? [];
  return count ? plural(Number(count), { m: "minute", h: "hour", d: "day" }[unit]) : window;
}

function playground(trial, endpoint, attempt) {
  return h(
    "form.card",
    { onsubmit: (event) => attempt(event, endpoint) },
    h("header", h("h2", "Try one line"), h("span.meta", endpoint)),
    field(
      "Request",
      h("textarea.code-input", { name: "body", rows: 10, spellcheck: "false", "data-own": true }, trial.text),
      "The first line of the file. It is sent once, to the same upstream as the batch.",
    ),
    h("button", { type: "submit", disabled: trial.busy }, trial.busy ? "Sending" : "Send"),
    trial.error && errorNotice(trial.error),
    trial.answer && [
      h(
        "p",
        { role: "status" },
        trial.answer.status === null
          ? badge("failed", "No answer")
          : badge(trial.answer.status < 300 ? "ok" : "failed", `Status ${trial.answer.status}`),
        h("span.meta", ` ${milliseconds(trial.answer.milliseconds)}`),
      ),
      bodyView("Answer", trial.answer.body),
    ],
  );
}
