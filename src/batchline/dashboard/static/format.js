// How numbers, durations, times and ids read on every page.

import { h } from "./dom.js";

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const ABSOLUTE = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
export const NONE = "–";

export function number(value) {
  return value === null || value === undefined ? NONE : WHOLE.format(value);
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** Short, for axes and dense cells: 1.2M. */
export function compact(value) {
  return Math.abs(value) < 10 || Math.abs(value) >= 10000 ? COMPACT.format(value) : WHOLE.format(value);
}

/** A total; where counting on would be slow, what is known of it: 10,000+. */
export function total({ count, exact }) {
  return exact ? number(count) : `${number(count)}+`;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return NONE;
  return perSecond < 1 && perSecond > 0 ? `${number(perSecond * 60)}/min` : `${number(perSecond)}/s`;
}

export function percent(part, whole) {
  if (!whole) return "0 %";
  const share = (100 * part) / whole;
  if (share > 0 && share < 1) return "< 1 %";
  // 99.96 % done is not done.
  return `${share > 99 && share < 100 ? (Math.floor(share * 10) / 10).toFixed(1) : Math.floor(share)} %`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  return value < 1000 ? `${Math.round(value)} ms` : duration(value / 1000);
}

/** 2 h 14 min, 3 d 4 h, 8.2 s. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const whole = Math.round(seconds);
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole % 60 && whole < 600 ? ` ${whole % 60} s` : ""}`;
  if (whole < 86400) return join(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return join(Math.floor(whole / 86400), "d", Math.floor((whole % 86400) / 3600), "h");
}

function join(large, unit, small, smallUnit) {
  return small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? value.toFixed(value < 10 ? 1 : 0) : value} ${units[unit]}`;
}

export function cost({ usd, tokens }) {
  if (usd > 0 && usd < 0.01) return "< $0.01";
  if (usd !== null && usd !== undefined)
    return `$${usd.toFixed(usd < 100 ? 2 : 0).replace(/\B(?=(\d{3})+(?!\d))/g, ",")}`;
  return tokens ? `${compact(tokens)} tokens` : NONE;
}

/** `at` is ISO 8601, or milliseconds. */
export function relative(at, now = Date.now()) {
  const seconds = ((typeof at === "number" ? at : Date.parse(at)) - now) / 1000;
  if (Math.abs(seconds) < 5) return "now";
  // Seconds do not matter after a minute.
  const size = Math.abs(seconds) < 60 ? Math.round(Math.abs(seconds)) : Math.floor(Math.abs(seconds) / 60) * 60;
  return seconds > 0 ? `in ${duration(size)}` : `${duration(size)} ago`;
}

/** A relative time with the absolute one on hover. */
export function time(iso) {
  if (!iso) return NONE;
  return h("time", { datetime: iso, title: ABSOLUTE.format(new Date(iso)) }, relative(iso));
}

export function clock(iso) {
  return new Date(iso).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** batch_0193a7…4c2e */
export function shortId(id) {
  return id.length <= 18 ? id : `${id.slice(0, id.search(/[_-]/) + 7)}…${id.slice(-4)}`;
}

/** A name of a field as words: max_failed becomes Max failed. */
export function words(name) {
  const spaced = name.replaceAll("_", " ");
  return spaced[0].toUpperCase() + spaced.slice(1);
}
