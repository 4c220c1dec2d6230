// Filters of records: an input that takes them, and a dialog that writes conditions as the broker reads them.

import { ask, button, field, h, select } from "./dom.js";

const FIELDS = [["path", "JSON path of the value"], ["header", "Header"], ["key", "Key"], ["value", "Value"]];
const OPERATORS = [["=", "is"], ["!=", "is not"], ["<", "is less than"], ["<=", "is at most"], [">", "is more than"], [">=", "is at least"], ["contains", "contains"], ["matches", "matches the expression"], ["exists", "exists"], ["missing", "is missing"]];
const ALONE = ["exists", "missing"];

export const filterInput = (value, placeholder) => h("input", { type: "search", placeholder, value, "data-search": true, spellcheck: "false", autocomplete: "off" });

const quoted = (text) => (/^[^\s"'=<>!~&|\\]+$/.test(text) ? text : JSON.stringify(text));
// What is in quotes already is text; numbers, true, false and null mean themselves.
const literal = (text) => (/^"(?:[^"\\]|\\.)*"$/.test(text) || (/^[^\s"']\S*$/.test(text)) ? text : JSON.stringify(text));

function fieldOf(kind, name) {
  if (kind === "header") return `$header.${quoted(name)}`;
  if (kind !== "path") return `$${kind}`;
  const path = name.replace(/^\$/, "");
  return `$${/^[.[]/.test(path) ? path : `.${path}`}`;
}

// Text that was looked for before stays a condition beside the new one.
const joined = (before, condition) => (before ? `${before.startsWith("$") ? before : `$value contains ${JSON.stringify(before)}`} and ${condition}` : condition);

export function conditionButton(input, apply) {
  return button("Add condition", () => {
    const kind = select(FIELDS, "path");
    const name = h("input", { placeholder: "customer.id, items[0].sku", autocomplete: "off", autofocus: true });
    const operator = select(OPERATORS, "=");
    const value = h("input", { autocomplete: "off", placeholder: 'a number, true, false, null or text; "42" is text' });
    const [nameField, valueField] = [field("Path or name", name), field("Compared with", value)];
    const shown = () => {
      nameField.hidden = !["path", "header"].includes(kind.value);
      name.placeholder = kind.value === "header" ? "source" : "customer.id, items[0].sku";
      valueField.hidden = ALONE.includes(operator.value);
    };
    for (const each of [kind, operator]) each.addEventListener("change", shown);
    shown();
    return ask("Add a condition", [field("Field", kind), nameField, field("Operator", operator), valueField], {
      action: "Add",
      submit: async () => {
        if (!nameField.hidden && !name.value.trim()) throw new Error(kind.value === "header" ? "Give the name of the header." : "Give the path, as in customer.id.");
        const parts = [fieldOf(kind.value, name.value.trim()), operator.value, ...(ALONE.includes(operator.value) ? [] : [literal(value.value.trim())])];
        input.value = joined(input.value.trim(), parts.join(" "));
        await apply();
      },
    });
  });
}
