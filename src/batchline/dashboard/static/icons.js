// Small line drawings for navigation and statuses. They decorate words and are hidden from screen readers.

import { s } from "./dom.js";

const PATHS = {
  overview: "M2 9.5 5.5 6l3 3L14 3.5M2 13.5h12",
  batches: "M2.5 4h11M2.5 8h7.5M2.5 12h4.5",
  files: "M4 1.8h5l3.2 3.2v9.2H4zM9 1.8V5h3.2",
  operations: "M8 1.8 13 4v4c0 3-2.2 5.2-5 6.2C5.2 13.2 3 11 3 8V4zM5.8 8l1.6 1.6L10.4 6.5",
  admin: "M2 4.5h6.5M12.5 4.5H14M2 11.5h1.5M7.5 11.5H14M10.5 2.5v4M5.5 9.5v4",
  check: "M3 8.5 6.5 12 13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  progress: "M8 2.2a5.8 5.8 0 1 1-5.8 5.8M8 5v3.2l2.2 1.4",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  stop: "M3.8 3.8l8.4 8.4M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2z",
  clock: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2zM8 4.8V8l2.2 1.6",
  hand: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2zM8 5v3.6M8 11v.2",
  warning: "M8 2.2 14.2 13H1.8zM8 6.2v3.3M8 11.2v.2",
  queue: "M8 3.2v.1M8 8v.1M8 12.8v.1",
  copy: "M5.5 5.5h7.7v7.7H5.5zM10.5 5.5V2.8H2.8v7.7h2.7",
  theme: "M13 9.8A5.6 5.6 0 0 1 6.2 3a5.6 5.6 0 1 0 6.8 6.8z",
  help: "M6 6a2 2 0 1 1 2.8 1.8c-.6.3-.8.7-.8 1.4M8 11.6v.2M8 1.8a6.2 6.2 0 1 1 0 12.4A6.2 6.2 0 0 1 8 1.8z",
  signout: "M9.5 2.5h-6v11h6M7 8h7M11.5 5.5 14 8l-2.5 2.5",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9zM10.3 10.3l3.7 3.7",
  download: "M8 2.5v7.5M4.8 7 8 10.2 11.2 7M2.8 13.3h10.4",
  upload: "M8 10.5V3M4.8 6 8 2.8 11.2 6M2.8 13.3h10.4",
};

export function icon(name) {
  return s(
    "svg.icon",
    { viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    s("path", { d: PATHS[name] }),
  );
}
