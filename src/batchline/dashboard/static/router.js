// The address holds the state: the path names the page, the query its filter, sort and cursor. So Back, reload and
// shared links work.

/** Patterns such as "/ui/batches/:id" in order, each with the function that makes its page. */
export class Router {
  #routes;
  #show;

  constructor(routes, show) {
    this.#routes = routes.map(([pattern, page]) => [
      new RegExp(`^${pattern.replace(/:(\w+)/g, "(?<$1>[^/]+)")}/?$`),
      page,
    ]);
    this.#show = show;
  }

  start() {
    window.addEventListener("popstate", () => this.refresh());
    document.addEventListener("click", (event) => this.#click(event));
    this.refresh();
  }

  /** Show the page of the current address. */
  refresh() {
    const { pathname, search } = window.location;
    for (const [pattern, page] of this.#routes) {
      const found = pattern.exec(pathname);
      if (!found) continue;
      const params = Object.fromEntries(
        Object.entries(found.groups ?? {}).map(([key, value]) => [key, decodeURIComponent(value)]),
      );
      return this.#show(page, { path: pathname, params, query: Object.fromEntries(new URLSearchParams(search)) });
    }
    return this.#show(null, { path: pathname, params: {}, query: {} });
  }

  go(address, { replace = false } = {}) {
    window.history[replace ? "replaceState" : "pushState"](null, "", address);
    return this.refresh();
  }

  #click(event) {
    const link = event.target.closest("a[href]");
    const plain = event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
    if (!link || !plain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
    if (link.getAttribute("href").startsWith("#")) return;
    const url = new URL(link.href);
    if (url.origin !== window.location.origin || !(url.pathname === "/" || url.pathname.startsWith("/ui/"))) return;
    event.preventDefault();
    this.go(url.pathname + url.search);
    window.scrollTo(0, 0);
  }
}
