// Tab Webhooks: receivers of events, and the deliveries to one of them.

import { call } from "../../api.js";
import { batchAddress } from "../../batch_columns.js";
import { h } from "../../dom.js";
import { number, shortId, time } from "../../format.js";
import { emptyState } from "../../notices.js";
import { badge } from "../../status.js";
import { card } from "../../table.js";

const WEBHOOKS = "/v1/webhook_endpoints";
const iso = (seconds) => (seconds ? new Date(seconds * 1000).toISOString() : null);

export const webhooksTab = {
  label: "Webhooks",
  open: true,
  load: async (query, signal) => {
    const { data } = await call("GET", WEBHOOKS, { signal });
    const chosen = data.find(({ id }) => id === query.endpoint) ?? data[0];
    const deliveries = chosen
      ? await call("GET", `${WEBHOOKS}/${encodeURIComponent(chosen.id)}/deliveries`, { signal })
      : { data: [] };
    return { data, chosen, deliveries: deliveries.data };
  },
  view: ({ data, chosen, deliveries }) => [
    card(
      "Webhooks",
      [
        {
          label: "Name",
          class: "name",
          cell: (hook) => [
            h(
              "a.row-link",
              {
                href: `/ui/admin/webhooks?endpoint=${hook.id}`,
                "aria-current": hook.id === chosen?.id ? "true" : null,
              },
              hook.name,
            ),
            h("div.meta", hook.url),
          ],
        },
        { label: "Events", class: "wide", cell: ({ event_types: types }) => types.join(", ") },
        { label: "Created", class: "number", cell: ({ created_at: at }) => time(iso(at)) },
      ],
      data,
      ({ id }) => id,
      emptyState(
        "No webhooks",
        "A webhook tells another server when a batch ends. Create one with POST /v1/webhook_endpoints.",
      ),
    ),
    chosen && h("h2", `Deliveries to ${chosen.name}`),
    chosen &&
      card(
        "Deliveries",
        [
          {
            label: "Event",
            class: "name",
            cell: (delivery) => [
              h("b", delivery.event_type),
              h(
                "div.meta",
                h("a", { href: batchAddress(delivery.batch_id), title: delivery.batch_id }, shortId(delivery.batch_id)),
              ),
            ],
          },
          { label: "Status", cell: ({ status }) => badge(status) },
          { label: "Last answer", class: "wide", cell: (delivery) => delivery.last_error ?? delivery.last_status_code },
          { label: "Attempts", class: "number", cell: ({ attempts }) => number(attempts) },
          { label: "Created", class: "number", cell: ({ created_at: at }) => time(iso(at)) },
        ],
        deliveries,
        ({ id }) => id,
        emptyState("No deliveries yet", "The first is sent when a batch ends."),
      ),
  ],
};
