// Access: users, roles, ACLs, API keys, the audit trail, and what one principal may do and why.

import { api, get, post, query, remove, session } from "./api.js";
import { ask, button, confirmName, copy, dotted, field, fill, h, head, moment, panel, segment, table, tabs, tag, toast } from "./dom.js";
import { number, time } from "./format.js";

const PARTS = [["users", "Users"], ["roles", "Roles"], ["acls", "ACLs"], ["keys", "API keys"], ["audit", "Audit trail"], ["rights", "Rights"]];
const words = (text) => text.split(/[\s,]+/).filter(Boolean);

export async function accessPage(context) {
  const part = PARTS.some(([key]) => key === context.names.part) ? context.names.part : "users";
  const made = await { users, roles, acls, keys, audit, rights }[part](context);
  return {
    title: PARTS.find(([key]) => key === part)[1],
    content: [head("Access", { actions: made.actions ?? [] }), tabs(PARTS.map(([key, text]) => [key, text, `/access/${key}`]), part), made.content],
  };
}

async function users(context) {
  const list = await get("/users");
  const create = () => {
    const name = h("input", { autofocus: true, autocomplete: "off" });
    const password = h("input", { type: "password", autocomplete: "new-password" });
    const given = h("input", { placeholder: "consumer, producer" });
    return ask("Create a user", [field("Name", name), field("Password", password), field("Roles", given)], { action: "Create", submit: async () => { await post("/users", { name: name.value, password: password.value, roles: words(given.value) }); await context.reload(); } });
  };
  const edit = (user) => {
    const given = h("input", { value: user.roles.join(", ") });
    const enabled = h("input", { type: "checkbox", checked: user.enabled });
    return ask(`Change ${user.name}`, [field("Roles", given), h("label", { class: "check" }, enabled, "May log in")], { submit: async () => { await api("PATCH", `/users/${segment(user.name)}`, { roles: words(given.value), enabled: enabled.checked }); await context.reload(); } });
  };
  const setPassword = (user) => {
    const password = h("input", { type: "password", autocomplete: "new-password", autofocus: true });
    const current = h("input", { type: "password", autocomplete: "current-password" });
    const own = session.state.principal === user.name;
    return ask(`Set the password of ${user.name}`, [own ? field("Current password", current) : null, field("New password", password)], {
      action: "Set", submit: async () => { await api("PUT", `/users/${segment(user.name)}/password`, { password: password.value, ...(own ? { current_password: current.value } : {}) }); toast(`The password of ${user.name} is set. Its sessions end.`); },
    });
  };
  return {
    actions: [button("Create user", create, "primary")],
    content: table([
      ["user", (each) => each.name], ["roles", (each) => each.roles.map((role) => tag(role))], ["may log in", (each) => each.enabled ? tag("yes", "good") : tag("no", "bad"), "wide"],
      ["created", (each) => time(each.created_ms), "nowrap wide"],
      ["", (each) => h("div", { class: "actions" }, h("a", { href: `/console/access/rights?principal=${segment(each.name)}` }, "rights"), button("Change", () => edit(each)), button("Password", () => setPassword(each)), button("Delete", () => confirmName(`Delete the user ${each.name}`, each.name, "Delete", async () => { await remove(`/users/${segment(each.name)}`); await context.reload(); }), "danger"))],
    ], list, { caption: "Users", empty: "There is no user." }),
  };
}

async function roles(context) {
  const list = await get("/roles");
  const create = () => {
    const name = h("input", { autofocus: true });
    const permissions = h("input", { placeholder: "read, write, commit, describe, create, delete, admin" });
    const description = h("input");
    return ask("Set a role", [field("Name", name), field("Permissions", permissions), field("Description", description)], { submit: async () => { await api("PUT", `/roles/${segment(name.value)}`, { permissions: words(permissions.value), description: description.value }); await context.reload(); } });
  };
  const drop = (role) => confirmName(`Delete the role ${role.name}`, role.name, "Delete", async () => { await remove(`/roles/${segment(role.name)}`); await context.reload(); });
  return {
    actions: [button("Set role", create, "primary")],
    content: table([["role", (each) => each.name], ["permissions", (each) => each.permissions.map((name) => tag(name))], ["description", (each) => each.description, "wide"], ["", (each) => each.built_in ? tag("built in") : button("Delete", () => drop(each), "danger"), "num"]], list, { caption: "Roles" }),
  };
}

async function acls(context) {
  const list = await get("/acls");
  const set = (acl) => {
    const pattern = h("input", { value: acl?.pattern ?? "", placeholder: "orders, shop/*, group://billing*", autofocus: true });
    const names = h("input", { value: acl?.users.join(", ") ?? "", placeholder: "ann, bob:read, key:worker" });
    const given = h("input", { value: acl?.roles.join(", ") ?? "" });
    const open = h("input", { type: "checkbox", checked: acl?.public ?? false });
    return ask("Set an ACL", [field("Topic, topics that begin with it followed by *, or group://", pattern), field("Users and keys", names), field("Roles", given), h("label", { class: "check" }, open, "Public")], { submit: async () => { await api("PUT", `/acls/${segment(pattern.value)}`, { users: words(names.value), roles: words(given.value), public: open.checked }); await context.reload(); } });
  };
  return {
    actions: [button("Set ACL", () => set(null), "primary")],
    content: table([["for", (each) => h("span", { class: "mono" }, each.pattern)], ["users", (each) => each.users.map((name) => tag(name))], ["roles", (each) => each.roles.map((name) => tag(name))], ["public", (each) => each.public ? tag("public", "warn") : ""],
      ["", (each) => h("div", { class: "actions" }, button("Change", () => set(each)), button("Delete", () => confirmName(`Delete the ACL ${each.pattern}`, each.pattern, "Delete", async () => { await remove(`/acls/${segment(each.pattern)}`); await context.reload(); }), "danger"))]], list, { caption: "ACLs", empty: "There is no ACL: what roles allow is allowed everywhere." }),
  };
}

async function keys(context) {
  const list = await get("/keys");
  const create = async () => {
    const name = h("input", { autofocus: true });
    const given = h("input", { value: "producer, consumer" });
    const made = await ask("Create an API key", [field("Name", name), field("Roles", given)], { action: "Create", submit: () => post("/keys", { name: name.value, roles: words(given.value) }) });
    if (!made) return;
    await ask("The new key", [h("p", {}, "It is shown this once. Copy it now."), h("pre", { "aria-label": "API key" }, made.key), button("Copy", () => copy(made.key))], { action: "Done", submit: () => true });
    await context.reload();
  };
  return {
    actions: [button("Create key", create, "primary")],
    content: table([["key", (each) => each.name], ["roles", (each) => each.roles.map((role) => tag(role))], ["created", (each) => time(each.created_ms), "nowrap wide"], ["by", (each) => each.created_by, "wide"],
      ["", (each) => h("div", { class: "actions" }, h("a", { href: `/console/access/rights?principal=${segment(`key:${each.name}`)}` }, "rights"), button("Revoke", () => confirmName(`Revoke the key ${each.name}`, each.name, "Revoke", async () => { await remove(`/keys/${segment(each.name)}`); await context.reload(); }), "danger"))]], list, { caption: "API keys", empty: "There is no API key." }),
  };
}

async function audit(context) {
  const search = h("input", { type: "search", value: context.query.get("search") ?? "", "data-search": true });
  const user = h("input", { value: context.query.get("user") ?? "" });
  const kind = h("input", { value: context.query.get("type") ?? "", placeholder: "topic.create, auth.failure" });
  const list = h("div");
  const load = async () => {
    const wanted = { search: search.value, user: user.value, type: kind.value };
    context.keep(wanted);
    const page = await get(`/audit${query({ ...wanted, limit: 200 })}`);
    fill(list, table([
      ["time", (each) => moment(time(each.ts_ms)), "nowrap mono"], ["event", (each) => each.type], ["user", (each) => each.user || "–"], ["from", (each) => each.client_ip, "wide"], ["resource", (each) => dotted(each.resource), "breaks resource"],
      ["result", (each) => tag(each.result, each.result === "success" ? "good" : "bad")], ["details", (each) => Object.entries(each.details).map(([name, value]) => `${name}=${value}`).join(" "), "mono wide"],
    ], page.events, { caption: "Audit trail", empty: "No event matches." }), h("p", { class: "dim" }, `${number(page.total)} events match, the newest first.`));
  };
  await load();
  return { content: [h("form", { class: "panel row", onsubmit: (event) => { event.preventDefault(); load().catch((error) => toast(error.message, "bad")); } }, field("Search", search, "grow"), field("User", user), field("Type", kind), h("button", { class: "primary" }, "Search")), list] };
}

async function rights(context) {
  const principal = h("input", { value: context.query.get("principal") ?? "", placeholder: "ann, key:worker", "data-search": true });
  const topic = h("input", { value: context.query.get("topic") ?? "", placeholder: "the broker as a whole" });
  const group = h("input", { value: context.query.get("group") ?? "" });
  const answer = h("div", { "aria-live": "polite" });
  const load = async () => {
    const wanted = { principal: principal.value, topic: topic.value, group: group.value };
    context.keep(wanted);
    try {
      const told = await get(`/principals/${segment(principal.value)}/rights${query({ topic: topic.value, group: group.value })}`);
      fill(answer, h("p", {}, "Roles: ", told.roles.length ? told.roles.map((role) => tag(role)) : "none"), table([
        ["operation", (each) => each.operation], ["allowed", (each) => each.allowed ? tag("allowed", "good") : tag("refused", "bad")], ["why", (each) => each.why],
      ], told.rights, { caption: "Rights" }));
    } catch (error) { fill(answer, h("div", { class: "error", role: "alert" }, error.message)); }
  };
  if (principal.value) await load();
  return { content: [panel(h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); load(); } }, field("User or key", principal, "grow"), field("Topic", topic, "grow"), field("Group", group), h("button", { class: "primary" }, "Explain"))), answer] };
}
