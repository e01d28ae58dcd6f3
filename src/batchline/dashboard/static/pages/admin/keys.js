// Tab Keys: who has access. Read-only, so that no browser shows a secret.

import { get } from "../../api.js";
import { h } from "../../dom.js";
import { time } from "../../format.js";
import { emptyState } from "../../notices.js";
import { badge } from "../../status.js";
import { card } from "../../table.js";

export const keysTab = {
  label: "Keys",
  load: (query, signal) => get("keys", query, signal),
  view: (keys) => [
    card(
      "API keys",
      [
        { label: "Name", class: "name", cell: ({ name, hint }) => [h("b", name), h("div.meta", `${hint}…`)] },
        { label: "Role", cell: ({ role }) => role },
        { label: "State", cell: ({ revoked_at: at }) => (at ? badge("cancelled", "Revoked") : badge("ok", "Valid")) },
        { label: "Created", class: "number", cell: ({ created_at: at }) => time(at) },
        { label: "Revoked", class: "number", cell: ({ revoked_at: at }) => time(at) },
      ],
      keys.data,
      ({ id }) => id,
      emptyState("No keys", "Create the first one from a terminal:", "batchline keys create NAME"),
    ),
    h(
      "p.meta",
      "Keys are created and revoked from a terminal, so that no browser shows a secret: batchline keys create, batchline keys revoke.",
    ),
  ],
};
