// Tabs Limits and Exemptions: how much of each limit is used, and who has other limits or none.

import { call } from "../../api.js";
import { ask, field } from "../../dialog.js";
import { h } from "../../dom.js";
import { number, time, words } from "../../format.js";
import { emptyState, toast } from "../../notices.js";
import { badge } from "../../status.js";
import { card } from "../../table.js";

const LIMITS = "/api/v1/admin/rate-limits";

const level = ({ current_value: current, max_value: maximum }) => `${number(current)} of ${number(maximum)}`;

export const limitsTab = {
  label: "Limits",
  load: (_query, signal) => call("GET", `${LIMITS}/status`, { signal }),
  view: (status, { reload }) => [
    h(
      "dl.tiles",
      Object.entries(status.global).map(([name, value]) =>
        h("div", h("dt", words(name).replace("parents", "batches")), h("dd", level(value))),
      ),
    ),
    card(
      "Limits by user",
      [
        { label: "User", class: "name", cell: ({ user_id: user }) => h("b", user) },
        { label: "Pending batches", class: "number", cell: (user) => level(user.pending_parents) },
        { label: "Pending items", class: "number", cell: (user) => level(user.pending_children) },
        { label: "Exempt until", class: "number", cell: ({ exempt_until: until }) => time(until) },
        {
          label: "Action",
          class: "number",
          cell: (user) => h("button", { type: "button", onclick: () => setLimits(user, reload) }, "Change"),
        },
      ],
      status.users,
      ({ user_id: user }) => user,
      emptyState("No user has pending work", "Users with pending work or limits of their own are shown here."),
    ),
  ],
};

async function setLimits(user, reload) {
  const input = (name, value, min) => h("input", { type: "number", name, value, min, required: true });
  const saved = await ask({
    title: `Limits of ${user.user_id}`,
    body: "They replace the defaults for this user.",
    fields: [
      field("Pending batches", input("max_pending_parents", user.pending_parents.max_value, 1)),
      field("Pending items", input("max_pending_children", user.pending_children.max_value, 1)),
      field("Seconds between batches", input("cooldown_seconds", user.cooldown_seconds, 0)),
      field("Reason", h("input", { name: "reason", required: true, maxlength: 2000 })),
    ],
    confirm: "Save limits",
    act: ({ reason, ...numbers }) =>
      call("PUT", `${LIMITS}/users/${encodeURIComponent(user.user_id)}`, {
        body: { ...Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, Number(value)])), reason },
      }),
  });
  if (saved) finish(`Limits of ${user.user_id} saved.`, reload);
}

export const exemptionsTab = {
  label: "Exemptions",
  load: (_query, signal) => call("GET", `${LIMITS}/exemptions`, { signal }),
  view: ({ data }, { reload }) => [
    h("div.toolbar", h("button.primary", { type: "button", onclick: () => exempt(reload) }, "Exempt a user")),
    card(
      "Exemptions",
      [
        { label: "User", class: "name", cell: ({ user_id: user, reason }) => [h("b", user), h("div.meta", reason)] },
        { label: "State", cell: ({ active }) => (active ? badge("ok", "Active") : badge("expired", "Ended")) },
        { label: "Until", class: "number", cell: ({ expires_at: at }) => time(at) },
        { label: "By", cell: ({ exempted_by: user }) => user },
        {
          label: "Action",
          class: "number",
          cell: ({ active, user_id: user }) =>
            active && h("button.danger-text", { type: "button", onclick: () => endExemption(user, reload) }, "End"),
        },
      ],
      data,
      ({ user_id: user }) => user,
      emptyState("No exemptions", "An exemption lifts the limits of one user for a time."),
    ),
  ],
};

async function exempt(reload) {
  const made = await ask({
    title: "Exempt a user from limits",
    body: "The limits for all users together still apply.",
    fields: [
      field("User", h("input", { name: "user_id", required: true, maxlength: 200 })),
      field("Hours", h("input", { type: "number", name: "hours", value: 24, min: 1, max: 8760, required: true })),
      field("Reason", h("input", { name: "reason", required: true, maxlength: 2000 })),
    ],
    confirm: "Exempt",
    act: ({ hours, ...given }) =>
      call("POST", `${LIMITS}/exemptions`, {
        body: { ...given, expires_at: new Date(Date.now() + hours * 3600000).toISOString() },
      }),
  });
  if (made) finish(`${made.user_id} is exempt.`, reload);
}

async function endExemption(user, reload) {
  const ended = await ask({
    title: "End exemption?",
    body: `The limits apply to ${user} again, at once.`,
    confirm: "End exemption",
    danger: true,
    act: async () => (await call("DELETE", `${LIMITS}/exemptions/${encodeURIComponent(user)}`), true),
  });
  if (ended) finish(`The exemption of ${user} has ended.`, reload);
}

function finish(message, reload) {
  toast(message);
  reload();
}
