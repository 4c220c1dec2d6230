// What the broker runs with, and where each value comes from.

import { get } from "./api.js";
import { dotted, fill, h, head, table, tag } from "./dom.js";

export async function configurationPage(context) {
  const settings = await get("/configuration");
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search settings", "data-search": true, value: context.query.get("search") ?? "" });
  const list = h("div");
  const draw = () => fill(list, table([
    ["setting", (each) => dotted(each.name), "mono breaks"], ["value", (each) => each.value, "mono breaks"], ["origin", (each) => each.origin === "default" ? h("span", { class: "dim" }, "default") : tag(each.origin)],
  ], settings.filter((each) => each.name.includes(search.value)), { caption: "Settings", empty: "No setting has this in its name." }));
  search.addEventListener("input", () => { context.keep({ search: search.value }); draw(); });
  draw();
  return { title: "Configuration", content: [head("Configuration", { actions: [search] }), list] };
}
