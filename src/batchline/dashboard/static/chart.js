// Line charts as inline SVG with labels in HTML, so that text keeps its size at any width. A table with the same
// values stands behind each chart.

import { h, s } from "./dom.js";
import { NONE, clock, compact, relative } from "./format.js";

const WIDTH = 600;
const HEIGHT = 140;

/** series: [{name, class, area?, values}] over common `times` (ISO). `unit` is said with every value; null is unknown. */
export function lineChart({ title, unit, times, series }) {
  const highest = niceMaximum(Math.max(0, ...series.flatMap(({ values }) => values.filter((value) => value !== null))));
  const moments = times.map((at) => Date.parse(at));
  const [first, last] = [moments[0], moments.at(-1)];
  // Points may be minutes or hours apart.
  const x = (index) => ((moments[index] - first) / (last - first)) * WIDTH;
  const y = (value) => HEIGHT - (Math.max(0, value) / highest) * HEIGHT;
  const heading = h("figcaption", h("h2", title), chartLegend(series, times.length - 1, unit));
  if (!(last > first))
    return h("figure.chart", heading, h("p.meta.no-data", "There are not enough values for a chart yet."));
  return h(
    "figure.chart",
    heading,
    plot({ title, unit, times, series, highest, x, y }),
    h(
      "div.axis-x",
      { "aria-hidden": "true" },
      [first, (first + last) / 2, last].map((at) => h("span", relative(at))),
    ),
    valueTable({ title, unit, times, series }),
  );
}

function chartLegend(series, last, unit) {
  return h(
    "ul.legend",
    series.map(({ name, class: kind, values }) =>
      h("li", h(`span.swatch.${kind}`), name, h("b", { "data-live": true }, said(values[last], unit))),
    ),
  );
}

function said(value, unit = "") {
  return value === undefined || value === null ? NONE : `${compact(value)} ${unit}`.trim();
}

function plot({ title, unit, times, series, highest, x, y }) {
  const peak = Math.max(...series[0].values);
  return h(
    "div.plot",
    {
      onpointermove: (event) => hover(event, { times, series, unit, x }),
      onpointerleave: (event) => hideHover(event.currentTarget),
    },
    h(
      "div.axis-y",
      { "aria-hidden": "true" },
      [highest, highest / 2, 0].map((value) => h("span", compact(value))),
    ),
    s(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${title}: highest ${series[0].name.toLowerCase()} ${compact(peak)} ${unit}`,
      },
      [0, 0.5, 1].map((share) => s("line.grid", { x1: 0, x2: WIDTH, y1: share * HEIGHT, y2: share * HEIGHT })),
      series.map((each) => drawLine(each, x, y)),
    ),
    h("div.cursor", { "data-own": true, hidden: true }),
    h("div.tip", { "data-own": true, hidden: true }),
  );
}

function drawLine({ class: kind, area, values }, x, y) {
  const known = [...values.entries()].filter(([, value]) => value !== null);
  if (!known.length) return [];
  const points = known.map(([index, value]) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const [start, end] = [known[0], known.at(-1)].map(([index]) => `${x(index).toFixed(1)},${HEIGHT}`);
  return [
    area && s(`polygon.area.${kind}`, { points: `${start} ${points} ${end}` }),
    s(`polyline.line.${kind}`, { points }),
  ].filter(Boolean);
}

function hover(event, { times, series, unit, x }) {
  const frame = event.currentTarget;
  const box = frame.querySelector("svg").getBoundingClientRect();
  const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  const index = nearest(times.length, x, share * WIDTH);
  const left = box.left - frame.getBoundingClientRect().left + (x(index) / WIDTH) * box.width;
  const [cursor, tip] = [frame.querySelector(".cursor"), frame.querySelector(".tip")];
  cursor.hidden = tip.hidden = false;
  cursor.style.left = `${left}px`;
  tip.style.left = `${left}px`;
  tip.classList.toggle("flip", share > 0.6);
  tip.replaceChildren(
    h("div.meta", clock(times[index])),
    ...series.map(({ name, class: kind, values }) =>
      h("div", h(`span.swatch.${kind}`), `${name} `, h("b", said(values[index], unit))),
    ),
  );
}

function nearest(count, x, position) {
  const distance = (index) => Math.abs(x(index) - position);
  return [...Array(count).keys()].reduce((best, index) => (distance(index) < distance(best) ? index : best), 0);
}

function hideHover(frame) {
  for (const node of frame.querySelectorAll(".cursor, .tip")) node.hidden = true;
}

function valueTable({ title, unit, times, series }) {
  return h(
    "details.values",
    h("summary", "Values as a table"),
    h(
      "div.scroll",
      { tabindex: "0", role: "region", "aria-label": `Values of ${title}` },
      h(
        "table.plain",
        h("caption.visually-hidden", `${title}, ${unit}`),
        h(
          "thead",
          h(
            "tr",
            h("th", { scope: "col" }, "Time"),
            series.map(({ name }) => h("th.number", { scope: "col" }, `${name} (${unit})`)),
          ),
        ),
        h(
          "tbody",
          times.map((at, index) =>
            h(
              "tr",
              h("td", clock(at)),
              series.map(({ values }) => h("td.number", said(values[index]))),
            ),
          ),
        ),
      ),
    ),
  );
}

/** 1, 2 or 5 times a power of ten, so that the labels are round. */
function niceMaximum(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 5, 8, 10].find((step) => step * power >= value);
}
