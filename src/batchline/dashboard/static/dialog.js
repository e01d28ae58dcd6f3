// Questions before an action: what will happen, in numbers, and a button that says what it does.

import { h } from "./dom.js";
import { errorNotice } from "./notices.js";

/** Ask, and run `act` with the values of the fields when the user confirms. An error keeps the dialog open.
 *
 * Resolves to the result of `act`, or to null if the user closes the dialog. `fields` are nodes with named inputs.
 */
export function ask({ title, body, fields = [], confirm, danger = false, act }) {
  return new Promise((resolve) => {
    let result = null;
    const problem = h("div");
    const button = h(`button.primary${danger ? ".danger" : ""}`, { type: "submit" }, confirm);
    const form = h(
      "form",
      { method: "dialog", onsubmit: submit },
      h("h2", { id: "dialog-title" }, title),
      h("div.dialog-body", body),
      fields,
      problem,
      h("div.buttons", h("button", { type: "button", onclick: () => dialog.close() }, "Close"), button),
    );
    const dialog = h(
      "dialog",
      { "aria-labelledby": "dialog-title", onclose: () => (dialog.remove(), resolve(result)) },
      form,
    );
    document.body.append(dialog);
    dialog.showModal();

    async function submit(event) {
      event.preventDefault();
      button.disabled = true;
      problem.replaceChildren();
      try {
        result = await act(Object.fromEntries(new FormData(form)));
        dialog.close();
      } catch (error) {
        if (error.status === undefined) throw error;
        problem.replaceChildren(errorNotice(error));
        button.disabled = false;
      }
    }
  });
}

export function field(label, input, hint) {
  return h("label.field", h("span", label), input, hint && h("small", hint));
}
