// Overview: what needs attention, how fast it runs, what is open, and what it runs on.

import { get } from "../api.js";
import { OPEN_COLUMNS } from "../batch_columns.js";
import { lineChart } from "../chart.js";
import { h } from "../dom.js";
import { NONE, compact, cost, milliseconds, number, plural, relative, shortId, time } from "../format.js";
import { icon } from "../icons.js";
import { emptyState } from "../notices.js";
import { badge } from "../status.js";
import { table } from "../table.js";

export function overviewPage() {
  return {
    title: "Overview",
    load: (signal) => get("overview", {}, signal),
    view,
    events: {
      overview: (data, event) => ({
        ...data,
        ...event,
        throughput: addPoint(data.throughput, event.throughput_point),
        in_flight: addPoint(data.in_flight, event.in_flight_point),
        open: keepOrder(data.open, event.open),
      }),
    },
  };
}

// The newest point replaces that of the same minute, or moves the window on.
function addPoint(points, point) {
  if (!point) return points;
  if (points.at(-1)?.[0] === point[0]) return [...points.slice(0, -1), point];
  return [...points.slice(points.length >= 60 ? 1 : 0), point];
}

/** While the user points at the table or has the focus in it, rows stay where they are; new ones come last. */
function keepOrder(before, after = before) {
  const inUse = document.querySelector(".open-batches")?.matches(":hover, :focus-within");
  if (!inUse) return after;
  const fresh = new Map(after.map((batch) => [batch.id, batch]));
  const kept = before.map((batch) => fresh.get(batch.id) ?? { ...batch, rate_per_s: null });
  return [...kept, ...after.filter(({ id }) => !before.some((batch) => batch.id === id))];
}

function view(data) {
  return h(
    "section.overview",
    h("header.page", h("h1", "Overview"), attention(data)),
    tiles(data),
    h("div.columns", h("div.card", throughput(data)), h("div.card", inFlight(data))),
    h(
      "div.card.open-batches",
      h(
        "header",
        h("h2", "Open batches"),
        h(
          "a",
          { href: "/ui/batches?status=in_progress,paused,cancelling,finalizing" },
          `All ${number(data.counts.open)} open`,
        ),
      ),
      openBatches(data),
    ),
    h(
      "div.columns.resources",
      h("div.card", { id: "upstreams" }, h("header", h("h2", "Upstreams")), upstreams(data)),
      h("div.card", h("header", h("h2", "Workers")), workers(data)),
    ),
  );
}

/** What an operator should look at first, each with a link to it. */
function attention({ counts, upstreams: all, live_workers: alive, open }) {
  const away = all.filter(({ state }) => state === "unavailable");
  const found = [
    !alive && open.length > 0 && ["bad", "No worker runs. Start one: batchline worker", null],
    away.length && ["bad", `${away.map(({ name }) => name).join(", ")}: not available`, "#upstreams"],
    counts.late && [
      "bad",
      `${plural(counts.late, "batch", "batches")} will be late`,
      "/ui/batches?sort=deadline&order=asc&status=in_progress,paused",
    ],
    counts.failed_recently && [
      "warn",
      `${plural(counts.failed_recently, "batch", "batches")} with failures in the last hour`,
      "/ui/batches?sort=failed&order=desc",
    ],
    counts.waiting_for_approval && [
      "idle",
      `${plural(counts.waiting_for_approval, "approval")} pending`,
      "/ui/operations",
    ],
    counts.paused && ["idle", `${number(counts.paused)} paused`, "/ui/batches?status=paused"],
  ].filter(Boolean);
  if (!found.length) return h("p.attention", h("span.badge.good", icon("check"), "Nothing needs attention"));
  return h(
    "ul.attention",
    { "aria-label": "Needs attention" },
    found.map(([tone, text, href]) =>
      h(
        "li",
        href
          ? h(`a.badge.${tone}`, { href }, icon(ICONS[tone]), text)
          : h(`span.badge.${tone}`, icon(ICONS[tone]), text),
      ),
    ),
  );
}

const ICONS = { bad: "warning", warn: "warning", idle: "hand" };

function tiles({ counts, spend_today: spend, throughput: points, in_flight: flights }) {
  const [, perSecond = 0] = points.at(-1) ?? [];
  const [, flying = 0, limit = null] = flights.at(-1) ?? [];
  return h(
    "dl.tiles",
    tile("Open batches", number(counts.open)),
    tile("Completed per second", number(perSecond)),
    tile("In flight", limit === null ? number(flying) : `${number(flying)} of ${number(limit)}`),
    tile("Late", number(counts.late), counts.late ? "bad-text" : ""),
    tile(
      "Spent today",
      spend.usd === null ? `${compact(spend.tokens)} tokens` : cost(spend),
      "",
      spend.usd === null ? null : `${compact(spend.tokens)} tokens`,
    ),
  );
}

function tile(label, value, tone = "", more = null) {
  return h("div", h("dt", label), h("dd", { class: tone, "data-live": true }, value), more && h("dd.meta", more));
}

function throughput({ throughput: points }) {
  return lineChart({
    title: "Throughput",
    unit: "/s",
    times: points.map(([at]) => at),
    series: [
      { name: "Completed", class: "completed", area: true, values: points.map(([, value]) => value) },
      { name: "Failed", class: "failed", values: points.map(([, , value]) => value) },
    ],
  });
}

function inFlight({ in_flight: points }) {
  return lineChart({
    title: "In flight",
    unit: "requests",
    times: points.map(([at]) => at),
    series: [
      { name: "In flight", class: "in_flight", area: true, values: points.map(([, value]) => value) },
      // The server knows only the limit of now, and none while nothing runs.
      points.at(-1)?.[2] && { name: "Limit", class: "limit", values: points.map(() => points.at(-1)[2]) },
    ].filter(Boolean),
  });
}

function openBatches({ open }) {
  const empty = emptyState(
    "No open batches",
    "Drop a file on the page Files, or run one from a terminal:",
    "batchline run requests.jsonl",
  );
  return table({
    caption: "Open batches by deadline, late ones first",
    columns: OPEN_COLUMNS,
    rows: open,
    key: ({ id }) => id,
    empty,
  });
}

function upstreams({ upstreams: rows }) {
  const columns = [
    { label: "Name", class: "name", cell: ({ name, reason }) => [h("b", name), reason && h("div.meta", reason)] },
    { label: "State", cell: ({ state }) => badge(state) },
    { label: "In flight", class: "number", cell: inFlightOf },
    {
      label: "p50 / p95",
      class: "number",
      cell: (each) => (each.p50_ms === null ? NONE : `${milliseconds(each.p50_ms)} / ${milliseconds(each.p95_ms)}`),
    },
    { label: "429/min", class: "number", cell: ({ rate_limited_per_min: value }) => number(value) },
  ];
  return table({
    caption: "Upstreams",
    columns,
    rows,
    key: ({ name }) => name,
    empty: emptyState("No upstreams", "Name one in batchline.toml, under [upstreams]."),
  });
}

/** Requests in flight, how many may be, and what that follows. */
function inFlightOf({ in_flight: flying, limit, max_limit: most, auto, limit_reason: reason }) {
  const numbers = [flying, limit].filter((value) => value !== null).map(number);
  const ceiling = auto && most ? `at most ${number(most)}` : null;
  const why = auto ? `auto${reason ? `: ${reason}` : ""}` : limit !== null && limit < most ? reason : null;
  return [
    h("span", { "data-live": true }, numbers.join(" / ")),
    why && h("div.meta", { title: ceiling, "data-live": true }, why),
  ];
}

function workers({ workers: rows, now }) {
  const columns = [
    {
      label: "Host",
      class: "name",
      cell: ({ host, id, version }) => [
        h("b", host),
        h("div.meta", { title: id }, [shortId(id), version].filter(Boolean).join(" · ")),
      ],
    },
    {
      label: "Lease",
      cell: ({ lease_until: until }) =>
        until < now ? badge("late", "Expired") : badge("ok", relative(until, Date.parse(now))),
    },
    { label: "Holds", class: "number", cell: ({ held }) => h("span", { "data-live": true }, plural(held, "line")) },
    { label: "Started", class: "number", cell: ({ started_at: at }) => time(at) },
  ];
  return table({
    caption: "Workers",
    columns,
    rows,
    key: ({ id }) => id,
    empty: emptyState(
      "No worker holds lines",
      "Idle workers are not listed. If batches wait, start a worker:",
      "batchline worker",
    ),
  });
}
