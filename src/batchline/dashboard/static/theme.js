// Light or dark: as the system prefers, until the user chooses. The choice is remembered in this browser.

const KEY = "batchline-theme";
const root = document.documentElement;

export function applyTheme() {
  const chosen = localStorage.getItem(KEY);
  if (chosen) root.dataset.theme = chosen;
}

export function toggleTheme() {
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : systemDark;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem(KEY, root.dataset.theme);
}
