// Admin: limits, exemptions, keys, webhooks with deliveries, the audit log, and what maintenance found.

import { isAdmin } from "../api.js";
import { h } from "../dom.js";
import { auditTab } from "./admin/audit.js";
import { keysTab } from "./admin/keys.js";
import { exemptionsTab, limitsTab } from "./admin/limits.js";
import { findingsTab } from "./admin/maintenance.js";
import { webhooksTab } from "./admin/webhooks.js";

// A tab is {label, load(query, signal), view(data, context), open?}. Only tabs that are open are for all users.
const TABS = {
  limits: limitsTab,
  exemptions: exemptionsTab,
  keys: keysTab,
  webhooks: webhooksTab,
  audit: auditTab,
  maintenance: findingsTab,
};

export function adminPage(context) {
  const { params, query } = context;
  const shown = Object.entries(TABS).filter(([, { open }]) => open || isAdmin());
  const [name, tab] = shown.find(([key]) => key === params.tab) ?? shown[0];
  return {
    title: "Admin",
    load: (signal) => tab.load(query, signal),
    view: (data) =>
      h(
        "section",
        h("header.page", h("h1", "Admin")),
        h(
          "nav.tabs",
          { "aria-label": "Admin" },
          shown.map(([key, { label }]) =>
            h("a", { href: `/ui/admin/${key}`, "aria-current": key === name ? "page" : null }, label),
          ),
        ),
        h("div.stack", { "data-key": name }, tab.view(data, context)),
      ),
  };
}
