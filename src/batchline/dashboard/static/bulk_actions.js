// Actions on ticked rows, or on all batches that match the filter. A preview gives the numbers; the action itself is
// an object on the server, with progress of its own.

import { post } from "./api.js";
import { ask, field } from "./dialog.js";
import { h } from "./dom.js";
import { number, plural, total } from "./format.js";
import { toast } from "./notices.js";

const ACTIONS = [
  ["pause", "Pause", false],
  ["resume", "Resume", false],
  ["retry", "Retry", false],
  ["priority", "Priority", false],
  ["cancel", "Cancel", true],
  ["delete", "Delete", true],
];

/** A row of buttons for the ticked rows, or for everything that matches if `all` is chosen; else only that choice. */
export function bulkActions({ ticked, all, total: matching, filter, choose, go }) {
  const everything = `all ${total(matching)} matching`;
  const more = h("button.link", { type: "button", onclick: () => choose(true) }, `Select ${everything}`);
  if (!all && !ticked.size) return h("div.bulk", more);
  const scope = all ? filter : { ids: [...ticked] };
  const buttons = ACTIONS.map(([action, label, danger]) =>
    h(
      `button${danger ? ".danger-text" : ""}`,
      { type: "button", onclick: () => run(action, label, danger, scope, go) },
      label,
    ),
  );
  return h(
    "div.bulk.chosen",
    { role: "group", "aria-label": "Actions on several batches" },
    h("b", { role: "status" }, all ? `Selected ${everything}` : `${number(ticked.size)} selected`),
    buttons,
    !all && more,
    h("button.link", { type: "button", onclick: () => choose(false) }, "Clear selection"),
  );
}

async function run(action, label, danger, filter, go) {
  const preview = await post("actions", { action, filter, preview: true });
  if (!preview.matching)
    return toast(`No matching batch can be changed: ${label.toLowerCase()} does not apply to them now.`, { bad: true });
  const noun = preview.matching === 1 ? "batch" : "batches";
  const batches = `${total({ count: preview.matching, exact: preview.exact })} ${noun}`;
  const started = await ask({
    title: `${label} ${batches}?`,
    body: [
      h("p", consequence(action, preview)),
      h(
        "ul.sample",
        preview.sample.map((batch) => h("li", batch.name || batch.file?.name || batch.id)),
      ),
      preview.matching > preview.sample.length &&
        h("p.meta", `and ${number(preview.matching - preview.sample.length)} more`),
    ],
    fields:
      action === "priority"
        ? field(
            "Priority",
            h("input", { type: "number", name: "value", value: 0, min: -100, max: 100, required: true }),
            "Batches with a higher priority run first within a tenant.",
          )
        : [],
    confirm: `${label} ${batches}`,
    danger,
    act: ({ value }) => post("actions", { action, filter, ...(value === undefined ? {} : { value: Number(value) }) }),
  });
  if (started) go(`/ui/actions/${started.id}`);
}

function consequence(action, { consequence: { not_started: waiting, in_flight: flying } }) {
  const lines = plural(waiting, "line has", "lines have");
  return {
    cancel: `${lines} not started and will not run. ${number(flying)} in flight will finish.`,
    pause: `${lines} not started and will wait. ${number(flying)} in flight will finish.`,
    resume: `${plural(waiting, "line")} will run.`,
    retry: `Lines that are not completed run again.`,
    priority: `${plural(waiting, "line")} not yet started will run in the new order.`,
    delete: `The batches and their results are deleted. This cannot be undone.`,
  }[action];
}
