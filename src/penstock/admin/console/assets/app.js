// The frame of the console: who is logged in, where we are, and which page shows it.

import { api, loadSession, session } from "./api.js";
import { button, field, fill, h, link, panel, toast } from "./dom.js";
import { accessPage } from "./access.js";
import { configurationPage } from "./configuration.js";
import { deadLetterPage, deadLettersPage } from "./dead_letters.js";
import { groupPage, groupsPage, subscriptionPage } from "./groups.js";
import { inspectionPage, inspectorPage } from "./inspector.js";
import { overviewPage } from "./overview.js";
import { pipelinePage, pipelinesPage } from "./pipelines.js";
import { recordsPage } from "./records.js";
import { schemaPage, schemasPage } from "./schemas.js";
import { topicPage, topicsPage } from "./topics.js";

const PAGES = [
  ["/", "Overview", "o"],
  ["/topics", "Topics", "t"],
  ["/groups", "Groups", "g"],
  ["/dead-letters", "Dead letters", "d"],
  ["/schemas", "Schemas", "s"],
  ["/pipelines", "Pipelines", "p"],
  ["/access", "Access", "a"],
  ["/inspector", "Inspector", "i"],
  ["/configuration", "Configuration", "c"],
];
const ROUTES = [
  ["/", overviewPage],
  ["/topics", topicsPage],
  ["/topics/:topic", topicPage],
  ["/topics/:topic/records", recordsPage],
  ["/groups", groupsPage],
  ["/groups/:group", groupPage],
  ["/subscriptions/:topic/:subscription", subscriptionPage],
  ["/dead-letters", deadLettersPage],
  ["/dead-letters/:topic", deadLetterPage],
  ["/schemas", schemasPage],
  ["/schemas/:schema", schemaPage],
  ["/pipelines", pipelinesPage],
  ["/pipelines/:pipeline", pipelinePage],
  ["/access", accessPage],
  ["/access/:part", accessPage],
  ["/inspector", inspectorPage],
  ["/inspector/:inspection", inspectionPage],
  ["/configuration", configurationPage],
];
const main = document.getElementById("main");
let current = { stop() {} };
let visit = 0;

const decoded = (part) => { try { return decodeURIComponent(part); } catch { return part; } };

function found(path) {
  const parts = path.split("/").slice(1);
  for (const [pattern, page] of ROUTES) {
    const wanted = pattern.split("/").slice(1);
    if (wanted.length !== parts.length) continue;
    const names = {};
    if (wanted.every((part, at) => (part.startsWith(":") ? (names[part.slice(1)] = decoded(parts[at])) !== "" : part === parts[at]))) return [page, names];
  }
  return [async () => ({ title: "Not found", content: panel("There is no such page. ", link("/", "Go to the overview")) }), {}];
}

// A page is a function that returns its title, its content and, if it keeps asking, how to stop it.
export async function show() {
  const mine = (visit += 1);
  current.stop?.();
  current = { stop() {} };
  const path = location.pathname.replace(/^\/console/, "").replace(/\/$/, "") || "/";
  frame(path);
  if (session.state.login_required && !session.state.principal) return showLogin();
  const [page, names] = found(path);
  const context = {
    names, query: new URLSearchParams(location.search), reload: show, go,
    // The address follows what is shown, without a new visit.
    keep: (values) => {
      const text = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== null)).toString();
      history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
    },
    isCurrent: () => mine === visit,
  };
  let made;
  try { made = await page(context); }
  catch (error) { made = { title: "Error", content: h("div", { class: "notice bad", role: "alert" }, error.message) }; }
  if (mine !== visit) { made.stop?.(); return; }
  current = made;
  document.title = `${made.title} – Penstock`;
  fill(main, made.content);
  main.focus({ preventScroll: true });
}

export function go(path) {
  history.pushState(null, "", `/console${path}`);
  scrollTo(0, 0);
  return show();
}

function frame(path) {
  const area = path.startsWith("/subscriptions/") ? "/groups" : `/${path.split("/")[1]}`;
  fill(document.getElementById("nav"), PAGES.map(([place, text, key]) =>
    h("a", { href: `/console${place === "/" ? "" : place}`, title: `g ${key}`, "aria-current": area === place ? "page" : null }, text)));
  const nav = document.getElementById("nav");
  const chosen = nav.querySelector("[aria-current]");
  if (chosen) nav.scrollLeft = chosen.offsetLeft - nav.offsetLeft - 8; // where it scrolls sideways
  const state = session.state;
  fill(document.getElementById("bar"),
    h("a", { class: "brand", href: "/console" }, h("img", { src: "/console/assets/icon.svg", alt: "" }), "Penstock"),
    h("span", { class: "dim wide" }, state.version), h("span", { class: "space" }),
    h("span", { class: "who" }, state.principal),
    button("Theme", theme, "plain", { title: "Light or dark", "aria-label": "Switch between light and dark" }),
    button("?", help, "plain", { "aria-label": "Keyboard shortcuts" }),
    state.login_required && state.principal ? button("Log out", logOut) : null);
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

function showLogin(notice = "") {
  const user = h("input", { autocomplete: "username", autofocus: true });
  const password = h("input", { type: "password", autocomplete: "current-password" });
  const key = h("input", { type: "password", autocomplete: "off" });
  const error = h("div", { class: "error", role: "alert" }, notice);
  const submit = async (event) => {
    event.preventDefault();
    fill(error);
    try {
      const body = key.value ? { key: key.value } : { user: user.value, password: password.value };
      session.state = await api("POST", "/session", body);
      await show();
    } catch (problem) { fill(error, problem.message); }
  };
  document.title = "Log in – Penstock";
  fill(main, h("div", { class: "login panel" }, h("form", { onsubmit: submit },
    h("h1", {}, "Log in"), field("User", user), field("Password", password), field("or an API key", key), error,
    h("button", { class: "primary" }, "Log in"))));
  user.focus();
}

async function logOut() {
  await api("DELETE", "/session");
  await loadSession();
  await show();
}

session.onLoggedOut = async () => {
  await loadSession();
  if (!session.state.principal) {
    current.stop?.();
    visit += 1;
    frame("/login");
    showLogin("You are logged out: your session has ended.");
  }
};

const KEYS = [[`g then ${PAGES.map(([, , key]) => key).join(", ")}`, "Go to a page"], ["/", "Search or filter"], ["j, k", "Next and previous row"], ["Enter", "Open the row"], ["Esc", "Close a dialog"], ["?", "This help"]];

function help() {
  const dialog = h("dialog", { "aria-label": "Keyboard shortcuts" }, h("h2", {}, "Keyboard shortcuts"),
    h("dl", {}, KEYS.flatMap(([keys, text]) => [h("dt", { class: "mono" }, keys), h("dd", {}, text)])),
    h("div", { class: "actions" }, button("Close", () => dialog.close())));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function move(step) {
  const rows = [...main.querySelectorAll("tbody tr.click")];
  const at = rows.indexOf(document.activeElement);
  rows[Math.min(Math.max(at + step, 0), rows.length - 1)]?.focus();
}

let pressedG = 0;
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName)) return;
  const page = PAGES.find(([, , key]) => key === event.key);
  if (page && Date.now() - pressedG < 1500) { pressedG = 0; go(page[0] === "/" ? "" : page[0]); return; }
  pressedG = event.key === "g" ? Date.now() : 0;
  if (event.key === "?") help();
  if (event.key === "j") move(1);
  if (event.key === "k") move(-1);
  if (event.key === "/") { const input = main.querySelector("[data-search]"); if (input) { event.preventDefault(); input.focus(); } }
});

addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href^='/console']");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(anchor.getAttribute("href").replace(/^\/console/, ""));
});
addEventListener("popstate", show);

const chosen = localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
try { await loadSession(); await show(); } catch (error) { toast(error.message, "bad"); fill(main, h("div", { class: "notice bad", role: "alert" }, error.message)); }
