// Starts the dashboard: the frame with its navigation, the pages, the event stream and the keyboard.

import { loadSession, session, signOut } from "./api.js";
import { h, morph } from "./dom.js";
import { EventStream } from "./events.js";
import { duration } from "./format.js";
import { icon } from "./icons.js";
import { listenForKeys, showHelp } from "./keys.js";
import { noticeRegions, toast } from "./notices.js";
import { PageRunner } from "./page.js";
import { Router } from "./router.js";
import { applyTheme, toggleTheme } from "./theme.js";
import { actionPage, actionsPage } from "./pages/actions.js";
import { adminPage } from "./pages/admin.js";
import { batchPage } from "./pages/batch.js";
import { batchesPage } from "./pages/batches.js";
import { filePage } from "./pages/file.js";
import { filesPage } from "./pages/files.js";
import { itemPage } from "./pages/item.js";
import { operationsPage } from "./pages/operations.js";
import { overviewPage } from "./pages/overview.js";
import { signInPage } from "./pages/signin.js";

const ROUTES = [
  ["/", overviewPage],
  ["/ui/batches", batchesPage],
  ["/ui/batches/:id", batchPage],
  ["/ui/batches/:id/items/:line", itemPage],
  ["/ui/batches/:id/:tab", batchPage],
  ["/ui/actions", actionsPage],
  ["/ui/actions/:id", actionPage],
  ["/ui/files", filesPage],
  ["/ui/files/:id", filePage],
  ["/ui/operations", operationsPage],
  ["/ui/admin", adminPage],
  ["/ui/admin/:tab", adminPage],
  ["/ui/signin", signInPage],
];

const NAVIGATION = [
  ["/", "overview", "Overview"],
  ["/ui/batches", "batches", "Batches"],
  ["/ui/files", "files", "Files"],
  ["/ui/operations", "operations", "Operations"],
  ["/ui/admin", "admin", "Admin"],
];

// A short interruption, such as a restart of the server, shows no banner.
const QUIET_MS = 1500;

class App {
  #main = h("main", { id: "content", tabindex: "-1" });
  #side = h("aside");
  #banner = h("div.banner", { role: "status", hidden: true });
  #bannerTimer = null;
  #events = new EventStream();
  #runner = new PageRunner(this.#main, (ids) => this.#events.watch(ids));
  #router = new Router(ROUTES, (page, location) => this.#show(page, location));
  #path = null;

  async start() {
    document.body.replaceChildren(
      h("a.skip", { href: "#content" }, "Skip to content"),
      this.#side,
      this.#banner,
      this.#main,
      ...noticeRegions(),
    );
    this.#events.addEventListener("message", ({ detail }) => this.#runner.message(detail.kind, detail.data));
    this.#events.addEventListener("reload", () => this.#runner.reload());
    this.#events.addEventListener("connection", ({ detail }) => this.#connection(detail));
    window.addEventListener("signedout", () => this.#signIn());
    window.addEventListener("unhandledrejection", ({ reason }) => toast(reason.message, { bad: true }));
    listenForKeys();
    await loadSession();
    if (session) this.#events.start();
    this.#router.start();
  }

  #show(page, location) {
    if (!session && page !== signInPage) return this.#signIn();
    if (session && page === signInPage) return this.#router.go("/", { replace: true });
    this.#drawSide(location.path);
    const context = {
      ...location,
      go: (address, options) => this.#router.go(address, options),
      reload: () => this.#runner.reload(),
      redraw: () => this.#runner.redraw(),
      signedIn: (next) => this.#signedIn(next),
    };
    // A screen reader starts at the new page's beginning, but a filter that changes keeps the focus.
    if (this.#path !== null && this.#path !== location.path) this.#main.focus({ preventScroll: true });
    this.#path = location.path;
    return this.#runner.show(page ? page(context) : notFound());
  }

  #signIn() {
    this.#events.stop();
    this.#hideBanner();
    const here = window.location.pathname + window.location.search;
    // Several requests may find that the session has ended; the first has noted where to return to.
    if (here.startsWith("/ui/signin")) return this.#router.refresh();
    const next = here === "/" ? "" : `?next=${encodeURIComponent(here)}`;
    return this.#router.go(`/ui/signin${next}`, { replace: true });
  }

  #signedIn(next) {
    this.#events.start();
    // Only a path of this page: an address of another host must not be followed.
    this.#router.go(/^\/ui\/(?!signin)/.test(next ?? "") ? next : "/", { replace: true });
  }

  #drawSide(path) {
    const current = (address) =>
      address === "/"
        ? path === "/"
        : path.startsWith(address) || (address === "/ui/batches" && path.startsWith("/ui/actions"));
    const link = ([address, drawing, name]) =>
      h(
        "li",
        h(
          "a",
          { href: address, title: name, "aria-current": current(address) ? "page" : null },
          icon(drawing),
          h("span", name),
        ),
      );
    const button = (drawing, name, onclick) =>
      h("button.quiet", { type: "button", title: name, "aria-label": name, onclick }, icon(drawing));
    const view = h(
      "aside",
      { hidden: !session },
      h(
        "a.brand",
        { href: "/", "aria-label": "Batchline, overview" },
        h("img", { src: "/ui/assets/icon.svg", alt: "", width: 20, height: 20 }),
        h("span", "Batchline"),
      ),
      h("nav", { "aria-label": "Main" }, h("ul", NAVIGATION.map(link))),
      session &&
        h(
          "div.who",
          h(
            "span.meta",
            { title: `${session.user}, ${session.role}` },
            session.user,
            session.tenant && h("br"),
            session.tenant,
          ),
          h(
            "div.tools",
            button("theme", "Light or dark", toggleTheme),
            button("help", "Keyboard help", showHelp),
            button("signout", "Sign out", () => this.#leave()),
          ),
        ),
    );
    morph(this.#side, view);
  }

  async #leave() {
    await signOut();
    this.#signIn();
  }

  #hideBanner() {
    clearTimeout(this.#bannerTimer);
    this.#bannerTimer = null;
    this.#banner.hidden = true;
  }

  #connection({ state, retryAt, reason }) {
    if (state === "open") this.#hideBanner();
    if (state !== "lost") return;
    const wait = duration(Math.round((retryAt - Date.now()) / 1000));
    // The first loss counts: attempts that fail in between do not put it off.
    this.#bannerTimer ??= setTimeout(() => (this.#banner.hidden = false), QUIET_MS);
    this.#banner.replaceChildren(
      icon("warning"),
      `${reason ?? "No connection to the server."} What you see may be out of date. Next try in ${wait}.`,
    );
  }
}

function notFound() {
  return {
    title: "Not found",
    load: async () => ({}),
    view: () =>
      h("section", h("h1", "Not found"), h("p", "There is no such page. ", h("a", { href: "/" }, "Overview"))),
  };
}

applyTheme();
new App().start();
