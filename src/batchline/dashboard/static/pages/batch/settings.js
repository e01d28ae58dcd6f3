// Tab Settings: what can change while a batch runs, and what cannot.

import { change } from "../../batch_actions.js";
import { field } from "../../dialog.js";
import { h } from "../../dom.js";
import { NONE, number } from "../../format.js";
import { errorNotice } from "../../notices.js";
import { steps } from "./summary.js";

export const settingsTab = {
  view: (batch, _loaded, { changed }) => {
    const { settings } = batch;
    return h(
      "div.columns",
      batch.actions.includes("change")
        ? form(batch, changed)
        : h(
            "div.card",
            h("header", h("h2", "Change while it runs")),
            h("p.meta", "The batch has ended, or you may not change it."),
          ),
      h(
        "div",
        h(
          "div.card",
          h("header", h("h2", "Fixed at creation")),
          h(
            "dl.facts.column",
            fact("Upstream", settings.upstream ?? "by model"),
            fact("Attempts per line", number(settings.max_attempts)),
            fact("Stops at failures", settings.max_failed ?? "never"),
            fact("File", batch.file?.name ?? NONE),
          ),
        ),
        settings.steps && steps(batch),
      ),
    );
  },
};

function fact(label, value) {
  return h("div", h("dt", label), h("dd", value));
}

/** The form keeps what the user types during live updates; saved settings replace it. */
function form(batch, changed) {
  const { concurrency, priority, deadline } = batch.settings;
  async function save(event) {
    event.preventDefault();
    const shown = event.target.querySelector(".problem");
    const given = Object.fromEntries(new FormData(event.target));
    const values = {
      concurrency: given.concurrency === "" ? null : Number(given.concurrency),
      priority: Number(given.priority),
      ...(given.deadline ? { deadline: new Date(given.deadline).toISOString() } : {}),
    };
    try {
      shown.replaceChildren();
      await change(batch, values, changed);
    } catch (error) {
      if (error.status === undefined) throw error;
      shown.replaceChildren(errorNotice(error));
    }
  }
  return h(
    "form.card.settings",
    { "data-own": true, "data-key": JSON.stringify([concurrency, priority, deadline]), onsubmit: save },
    h("header", h("h2", "Change while it runs")),
    field(
      "Concurrency",
      h("input", {
        type: "number",
        name: "concurrency",
        value: concurrency ?? "",
        min: 1,
        max: 100000,
        placeholder: "no limit",
      }),
      "Requests of this batch that each worker has in flight at one upstream. Empty: no limit of its own.",
    ),
    field(
      "Priority",
      h("input", { type: "number", name: "priority", value: priority, min: -100, max: 100, required: true }),
      "Batches with a higher priority run first within a tenant, before the deadline counts.",
    ),
    field(
      "Deadline",
      h("input", { type: "datetime-local", name: "deadline", value: localInput(deadline) }),
      "Lines that have not run by then expire.",
    ),
    h("div.problem"),
    h("button.primary", { type: "submit" }, "Save"),
  );
}

function localInput(iso) {
  if (!iso) return "";
  const at = new Date(iso);
  return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}
