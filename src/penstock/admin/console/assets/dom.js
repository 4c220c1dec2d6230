// Elements, made from data. Whatever comes from the broker becomes a text node: there is no way here to turn it into markup.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

export const link = (path, ...children) => h("a", { href: `/console${path}` }, ...children);
// A dotted name that is broken into lines between its words rather than inside of them.
export const dotted = (name) => (name.match(/[^._/]+[._/]*|[._/]+/g) ?? []).flatMap((part) => [part, h("wbr")]);
export const segment = (name) => encodeURIComponent(name);
export const tag = (text, kind = "") => h("span", { class: `tag ${kind}` }, text);
export const panel = (...children) => h("section", { class: "panel" }, ...children);
export const button = (text, onclick, kind = "", properties = {}) =>
  h("button", { type: "button", class: kind, onclick, ...properties }, text);

export function field(label, input, kind = "") {
  return h("label", { class: `field ${kind}` }, label, input);
}

export function select(options, value, properties = {}) {
  const element = h("select", properties, options.map(([key, text]) => h("option", { value: key }, text)));
  element.value = value;
  return element;
}

// A column is [heading, cell of a row, class]. With `open`, a row is a link that mouse and keyboard follow.
export function table(columns, rows, { open, empty = "Nothing here yet.", caption } = {}) {
  if (!rows.length) return h("div", { class: "panel empty" }, empty);
  const body = rows.map((row) =>
    h("tr", open ? {
      class: "click", tabindex: "0",
      onclick: (event) => { if (!event.target.closest("a, button, input")) open(row, event.currentTarget); },
      onkeydown: (event) => { if (event.key === "Enter" && event.target === event.currentTarget) open(row, event.currentTarget); },
    } : {}, columns.map(([, cell, kind]) => h("td", { class: kind }, cell(row)))));
  return h("div", { class: "panel flush" }, h("table", { "aria-label": caption },
    h("thead", {}, h("tr", {}, columns.map(([name, , kind]) => h("th", { scope: "col", class: kind }, name)))),
    h("tbody", {}, body)));
}

export function head(title, { crumbs = [], actions = [] } = {}) {
  const trail = crumbs.flatMap(([text, path]) => [link(path, text), " / "]);
  return h("div", { class: "head" },
    h("div", {}, trail.length ? h("div", { class: "crumbs" }, trail) : null, h("h1", {}, title)),
    h("div", { class: "actions" }, actions));
}

export function tabs(items, current) {
  return h("nav", { class: "tabs", "aria-label": "Parts of this page" },
    items.map(([key, text, path]) => h("a", { href: `/console${path}`, "aria-current": key === current ? "page" : null }, text)));
}

export function toast(text, kind = "") {
  const note = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), 6000);
}

// A form in a dialog: `submit` may throw, and then its message is shown and the dialog stays.
export function ask(title, fields, { action = "Save", danger = false, submit, wide = false }) {
  return new Promise((resolve) => {
    const error = h("div", { class: "error", role: "alert" });
    const done = (value) => { dialog.close(); dialog.remove(); resolve(value); };
    const form = h("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        fill(error);
        try { done(await submit() ?? true); } catch (problem) { fill(error, problem.message); }
      },
    }, fields, error, h("div", { class: "actions" }, button("Cancel", () => done(null)),
      h("button", { class: danger ? "danger" : "primary" }, action)));
    const dialog = h("dialog", { "aria-label": title, class: wide ? "wide-dialog" : "" }, h("h2", {}, title), form);
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); done(null); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// What cannot be undone asks for the name to be typed.
export function confirmName(title, name, action, submit) {
  const input = h("input", { autocomplete: "off", autofocus: true });
  return ask(title, [field(`Type ${name} to confirm`, input)], {
    action, danger: true,
    submit: () => {
      if (input.value !== name) throw new Error(`That is not ${name}.`);
      return submit();
    },
  });
}

export async function copy(text) {
  try { await navigator.clipboard.writeText(text); toast("Copied."); }
  catch { toast("The browser did not allow copying.", "bad"); }
}

// A time whose date gives way on narrow screens.
export const moment = (text) => { const [day, hour] = text.split(" "); return hour ? [h("span", { class: "wide" }, `${day} `), hour] : text; };
