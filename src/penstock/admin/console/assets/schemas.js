// Schemas: versions, what changed between two, a draft checked before it is registered, and a record tried.

import { get, post, remove } from "./api.js";
import { ask, button, confirmName, field, fill, h, head, link, panel, segment, select, table, tag, toast } from "./dom.js";
import { pretty, time } from "./format.js";

const TYPES = [["json", "JSON Schema"], ["avro", "Avro"], ["protobuf", "Protobuf"]];
const LEVELS = [["", "as it is"], ["none", "none"], ["backward", "backward"], ["forward", "forward"], ["full", "full"], ["backward_transitive", "backward, all versions"], ["forward_transitive", "forward, all versions"], ["full_transitive", "full, all versions"]];
const DIFF_LINES_MAX = 2000;

export async function schemasPage(context) {
  const schemas = await get("/schemas");
  return {
    title: "Schemas",
    content: [head("Schemas", { actions: [button("Register schema", () => create(context), "primary")] }), table([
      ["schema", (each) => link(`/schemas/${segment(each.name)}`, each.name)],
      ["type", (each) => each.type],
      ["latest version", (each) => each.versions.at(-1), "num"],
      ["versions", (each) => each.versions.length, "num wide"],
      ["compatibility", (each) => each.compatibility],
      ["registered", (each) => time(each.created_ms), "nowrap wide"],
    ], schemas, { open: (each) => context.go(`/schemas/${segment(each.name)}`), caption: "Schemas", empty: "There is no schema yet. Register one." })],
  };
}

function create(context) {
  const name = h("input", { autofocus: true, autocomplete: "off", required: true });
  const type = select(TYPES, "json");
  const definition = h("textarea", { required: true });
  return ask("Register a schema", [field("Name", name), field("Type", type), field("Definition", definition)], {
    action: "Register",
    submit: async () => { await post(`/schemas/${segment(name.value)}`, { type: type.value, definition: definition.value }); await context.go(`/schemas/${segment(name.value)}`); },
  });
}

const shown = (version) => (version.type === "protobuf" ? version.definition : pretty(version.definition));

export async function schemaPage(context) {
  const name = context.names.schema;
  const versions = await get(`/schemas/${segment(name)}`);
  const latest = versions.at(-1);
  const numbers = versions.map((each) => [String(each.version), `version ${each.version}`]);
  const chosen = (key, fallback) => (numbers.some(([number]) => number === context.query.get(key)) ? context.query.get(key) : String(fallback));
  const right = select(numbers, chosen("version", latest.version), { "aria-label": "Version" });
  const left = select([["", "nothing"], ...numbers], chosen("with", versions.length > 1 ? versions.at(-2).version : ""), { "aria-label": "Compare with" });
  const text = h("pre", { class: "diff", tabindex: "0", "aria-label": "Definition" });
  const registered = h("p", { class: "dim" });
  const draw = () => {
    const find = (input) => versions.find((each) => String(each.version) === input.value);
    const [before, after] = [find(left), find(right)];
    context.keep({ version: right.value, with: left.value });
    fill(registered, `Version ${after.version}, registered ${time(after.created_ms)}`);
    fill(text, before && before !== after ? diff(shown(before), shown(after)) : shown(after).split("\n").map((line) => h("span", {}, line || " ")));
  };
  for (const input of [left, right]) input.addEventListener("change", draw);
  draw();
  return {
    title: name,
    content: [
      head(name, { crumbs: [["Schemas", "/schemas"]], actions: [tag(latest.type), tag(`compatibility ${latest.compatibility}`), button("Delete", () => destroy(context, name), "danger")] }),
      h("div", { class: "two" },
        h("section", { class: "panel" }, h("div", { class: "row" }, field("Show", right), field("compared with", left)), registered, text),
        h("div", {}, draft(context, name, latest), trial(name))),
    ],
  };
}

function destroy(context, name) {
  return confirmName(`Delete every version of the schema ${name}`, name, "Delete the schema", async () => {
    await remove(`/schemas/${segment(name)}`);
    toast(`Schema ${name} deleted.`);
    await context.go("/schemas");
  });
}

function draft(context, name, latest) {
  const definition = h("textarea", { value: shown(latest), "aria-label": "Draft of the next version", rows: "14" });
  const level = select(LEVELS, "");
  const outcome = h("div", { "aria-live": "polite" });
  const body = () => ({ type: latest.type, definition: definition.value, compatibility: level.value || null });
  const check = async () => {
    try {
      const result = await post(`/schemas/${segment(name)}/check`, body());
      fill(outcome, result.compatible ? h("p", { class: "good" }, "It can be the next version.") : [h("p", { class: "bad" }, "It cannot be the next version:"), h("ul", {}, result.problems.map((each) => h("li", {}, each)))]);
    } catch (error) { fill(outcome, h("div", { class: "error", role: "alert" }, error.message)); }
  };
  const register = async () => {
    try { const made = await post(`/schemas/${segment(name)}`, body()); toast(`This is version ${made.version}.`); await context.go(`/schemas/${segment(name)}`); } catch (error) { fill(outcome, h("div", { class: "error", role: "alert" }, error.message)); }
  };
  return panel(h("h2", {}, "Draft of the next version"), definition, h("div", { class: "row" }, field("Compatibility", level), button("Check", check), button("Register", register, "primary")), outcome);
}

function trial(name) {
  const value = h("textarea", { "aria-label": "A value to try" });
  const outcome = h("div", { "aria-live": "polite" });
  const tryIt = async () => {
    try {
      const result = await post(`/schemas/${segment(name)}/validate`, { value: value.value });
      fill(outcome, result.valid ? h("p", { class: "good" }, "The value follows the schema.") : h("ul", { class: "bad" }, result.faults.map((each) => h("li", {}, each))));
    } catch (error) { fill(outcome, h("div", { class: "error", role: "alert" }, error.message)); }
  };
  return panel(h("h2", {}, "Try a value"), value, h("div", { class: "row" }, button("Try", tryIt)), outcome);
}

// The longest common subsequence of lines; texts beyond the bound are shown one after the other.
function diff(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  const line = (kind, mark, text) => h("span", { class: kind }, `${mark} ${text}`);
  if (a.length * b.length > DIFF_LINES_MAX * DIFF_LINES_MAX) return [...a.map((text) => line("del", "-", text)), ...b.map((text) => line("add", "+", text))];
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { lines.push(line("", " ", a[i])); i += 1; j += 1; }
    else if (j >= b.length || (i < a.length && lengths[i + 1][j] >= lengths[i][j + 1])) { lines.push(line("del", "-", a[i])); i += 1; }
    else { lines.push(line("add", "+", b[j])); j += 1; }
  }
  return lines;
}
