// Sign-in with an API key. The server answers with a cookie that scripts cannot read.

import { signIn } from "../api.js";
import { h } from "../dom.js";
import { field } from "../dialog.js";
import { errorNotice } from "../notices.js";

export function signInPage({ query, signedIn }) {
  const problem = h("div", { "data-own": true });

  async function submit(event) {
    event.preventDefault();
    const key = new FormData(event.target).get("key").trim();
    const shown = event.target.querySelector("[data-own]");
    shown.replaceChildren();
    try {
      await signIn(key);
      signedIn(query.next);
    } catch (error) {
      if (error.status === undefined) throw error;
      shown.replaceChildren(errorNotice(error));
    }
  }

  return {
    title: "Sign in",
    load: async () => ({}),
    view: () =>
      h(
        "form.sign-in",
        { onsubmit: submit },
        h("img", { src: "/ui/assets/icon.svg", alt: "", width: 40, height: 40 }),
        h("h1", "Sign in to Batchline"),
        field(
          "API key",
          h("input", {
            type: "password",
            name: "key",
            required: true,
            autocomplete: "current-password",
            autofocus: true,
            placeholder: "bl-…",
          }),
          "Create one with: batchline keys create",
        ),
        problem,
        h("button.primary", { type: "submit" }, "Sign in"),
      ),
  };
}
