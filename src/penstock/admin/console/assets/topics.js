// Topics, and one topic: partitions, settings, readers, and what changes them.

import { api, get, post, query, remove, topicPath } from "./api.js";
import { ask, button, confirmName, field, fill, h, head, link, segment, select, table, tag, toast } from "./dom.js";
import { bytes, duration, number, rate, setting } from "./format.js";
import { spark } from "./plots.js";

const INTERVAL_MS = 3000;
const RATES_MAX = 30;
const TOPICS_MAX = 1000;
const rates = new Map(); // by topic, what this page has seen while it was open
const SETTINGS = ["durability", "retention_ms", "retention_bytes", "cleanup", "compression", "segment_bytes", "segment_ms"];

export async function topicsPage(context) {
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search topics", "data-search": true, value: context.query.get("search") ?? "" });
  const list = h("div");
  let before = null;
  let timer = 0;
  const refresh = async () => {
    const page = await get(`/topics${query({ search: search.value })}`);
    if (!context.isCurrent()) return;
    note(before, page.topics);
    fill(list, table([
      ["topic", (each) => link(`/topics/${segment(each.name)}`, each.name)],
      ["partitions", (each) => number(each.partitions), "num wide"],
      ["records", (each) => number(each.records), "num"],
      ["in", (each) => rates.has(each.name) ? [spark(rates.get(each.name)), rate(rates.get(each.name).at(-1))] : "–", "num"],
      ["size", (each) => bytes(each.size_bytes), "num wide"],
      ["schema", (each) => each.schema ? link(`/schemas/${segment(each.schema.split(":")[0])}`, each.schema) : h("span", { class: "dim" }, "–"), "wide"],
      ["", (each) => each.failed_partitions ? tag(`${each.failed_partitions} refuse writes`, "bad") : link(`/topics/${segment(each.name)}/records`, "records")],
    ], page.topics, { open: (each) => context.go(`/topics/${segment(each.name)}`), caption: "Topics", empty: search.value ? "No topic has this in its name." : "There is no topic yet. Create one." }),
    page.more ? h("p", { class: "dim" }, "There are more: search for those you want.") : null);
    before = { at: Date.now(), ends: new Map(page.topics.map((each) => [each.name, each.end_offsets])) };
  };
  const step = async () => {
    if (!list.contains(document.activeElement)) await refresh().catch(() => {});
    timer = setTimeout(step, INTERVAL_MS);
  };
  search.addEventListener("input", () => { context.keep({ search: search.value }); refresh().catch((error) => toast(error.message, "bad")); });
  await refresh();
  timer = setTimeout(step, INTERVAL_MS);
  return {
    title: "Topics", stop: () => clearTimeout(timer),
    content: [head("Topics", { actions: [search, button("Create topic", () => create(context), "primary")] }), list],
  };
}

function note(before, topics) {
  const seconds = before ? Math.max((Date.now() - before.at) / 1000, 0.001) : 0;
  for (const { name, end_offsets: end } of topics) {
    if (!before?.ends.has(name)) continue;
    const seen = rates.get(name) ?? [];
    rates.delete(name);
    rates.set(name, [...seen, Math.max(0, end - before.ends.get(name)) / seconds].slice(-RATES_MAX));
  }
  for (const name of [...rates.keys()].slice(0, Math.max(0, rates.size - TOPICS_MAX))) rates.delete(name);
}

function create(context) {
  const name = h("input", { autofocus: true, autocomplete: "off", required: true });
  const partitions = h("input", { type: "number", min: "1", value: "1" });
  const retention = h("input", { placeholder: "forever, 7d, 12h" });
  const cleanup = select([["delete", "delete"], ["compact", "compact"]], "delete");
  const schema = h("input", { placeholder: "none" });
  return ask("Create a topic", [field("Name", name), field("Partitions", partitions), field("Retention", retention), field("Cleanup", cleanup), field("Schema", schema)], {
    action: "Create",
    submit: async () => {
      const settings = { cleanup: cleanup.value };
      if (retention.value) settings.retention_ms = retention.value;
      await post("/topics", { name: name.value, partitions: Number(partitions.value), settings, schema: schema.value || null });
      toast(`Topic ${name.value} created.`);
      await context.go(`/topics/${segment(name.value)}`);
    },
  });
}

export async function topicPage(context) {
  const name = context.names.topic;
  const topic = await get(topicPath(name));
  const readers = await readersOf(name).catch(() => null);
  const records = topic.partitions.reduce((sum, each) => sum + each.high_watermark - each.start_offset, 0);
  const change = (make) => () => make(context, topic);
  return {
    title: name,
    content: [
      head(name, {
        crumbs: [["Topics", "/topics"]],
        actions: [button("Browse records", () => context.go(`/topics/${segment(name)}/records`), "primary"), button("Alter", change(alter)), button("Add partitions", change(addPartitions)),
          button("Bind schema", change(bind)), button("Truncate", change(truncate), "danger"), button("Delete", change(destroy), "danger")],
      }),
      h("div", { class: "two" },
        h("section", { class: "panel" }, h("h2", {}, "Settings"), h("dl", {},
          pair("records", number(records)), pair("size", bytes(topic.partitions.reduce((sum, each) => sum + each.size_bytes, 0))),
          pair("schema", topic.schema ? link(`/schemas/${segment(topic.schema.split(":")[0])}`, topic.schema) : "none"),
          Object.entries(topic.settings).map(([key, value]) => pair(key, setting(key, value))), pair("id", h("span", { class: "mono" }, topic.id)))),
        h("div", {}, h("h2", {}, "Readers"), readers === null ? h("p", { class: "dim" }, "Listing groups needs the permission admin.") : table([
          ["reader", (each) => link(each.path, each.name)],
          ["", (each) => each.state],
          ["lag", (each) => number(each.lag), "num"],
          ["oldest", (each) => duration(each.lag_s), "num"],
        ], readers, { caption: "Readers of this topic", empty: "No group or subscription reads this topic." }))),
      h("h2", {}, "Partitions"),
      table([
        ["partition", (each) => link(`/topics/${segment(name)}/records?partition=${each.partition}`, each.partition)],
        ["log start offset", (each) => number(each.start_offset), "num wide"],
        ["high watermark", (each) => number(each.high_watermark), "num"],
        ["records", (each) => number(each.high_watermark - each.start_offset), "num"],
        ["size", (each) => bytes(each.size_bytes), "num"],
        ["", (each) => each.failure ? tag(each.failure, "bad") : ""],
      ], topic.partitions, { caption: "Partitions" }),
    ],
  };
}

// Groups by their members, subscriptions by what they have not acknowledged.
async function readersOf(topic) {
  const [{ groups }, { subscriptions }] = [await get(`/groups${query({ topic })}`), await get(`/subscriptions${query({ topic })}`)];
  return [...groups.map((each) => ({ ...each, path: `/groups/${segment(each.name)}` })),
    ...subscriptions.map((each) => ({ ...each, path: `/subscriptions/${segment(topic)}/${segment(each.name)}`, state: `subscription, ${number(each.in_flight)} in flight` }))];
}

export const pair = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

function alter(context, topic) {
  const inputs = SETTINGS.map((name) => [name, h("input", { value: topic.settings[name] ?? "", autocomplete: "off" })]);
  return ask(`Alter ${topic.name}`, inputs.map(([name, input]) => field(name, input)), {
    submit: async () => {
      const changed = inputs.filter(([name, input]) => input.value !== topic.settings[name]).map(([name, input]) => [name, input.value]);
      if (changed.length) await api("PATCH", topicPath(topic.name), { settings: Object.fromEntries(changed) });
      toast("The settings are changed.");
      await context.reload();
    },
  });
}

function addPartitions(context, topic) {
  const count = h("input", { type: "number", min: topic.partitions.length, value: topic.partitions.length + 1 });
  return ask("Add partitions", [field("Partitions in all", count), h("p", { class: "dim" }, "Keys may map to other partitions from now on.")], {
    action: "Add", submit: async () => { await post(topicPath(topic.name, "/partitions"), { partitions: Number(count.value) }); await context.reload(); },
  });
}

function bind(context, topic) {
  const schema = h("input", { value: topic.schema ?? "", placeholder: "none", autocomplete: "off" });
  return ask("Bind to a schema", [field("Schema, or schema:version", schema)], {
    submit: async () => { await api("PUT", topicPath(topic.name, "/schema"), { schema: schema.value || null }); await context.reload(); },
  });
}

function truncate(context, topic) {
  return confirmName(`Delete every record of ${topic.name}`, topic.name, "Delete all records", async () => {
    await post(topicPath(topic.name, "/truncation"), { mode: "end" });
    toast("The topic is empty.");
    await context.reload();
  });
}

function destroy(context, topic) {
  return confirmName(`Delete the topic ${topic.name}`, topic.name, "Delete the topic", async () => {
    await remove(topicPath(topic.name));
    toast(`Topic ${topic.name} deleted.`);
    await context.go("/topics");
  });
}
