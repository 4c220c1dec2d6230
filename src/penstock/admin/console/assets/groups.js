// Consumer groups and subscriptions: lag, members, and a reset that shows first what it would change.

import { get, post, query, remove } from "./api.js";
import { button, confirmName, field, fill, h, head, link, segment, select, table, tag, toast } from "./dom.js";
import { duration, number, time } from "./format.js";
import { plot } from "./plots.js";
import { pair } from "./topics.js";

const PLOTS_MS = 10000;

export async function groupsPage(context) {
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search groups", "data-search": true, value: context.query.get("search") ?? "" });
  const [groups, subscriptions] = [await everything("groups"), await everything("subscriptions")];
  const content = h("div");
  const draw = () => {
    const wanted = (each) => `${each.name} ${each.topic}`.toLowerCase().includes(search.value.toLowerCase());
    fill(content, h("h2", {}, "Consumer groups"), table([
      ["group", (each) => link(`/groups/${segment(each.name)}`, each.name)],
      ["topic", (each) => link(`/topics/${segment(each.topic)}`, each.topic)],
      ["state", (each) => tag(each.state, each.members.length || each.sessions ? "good" : ""), "wide"],
      ["members", (each) => number(each.members.length + each.sessions), "num wide"],
      ["lag", (each) => number(each.lag), "num"],
      ["oldest unread", (each) => duration(each.lag_s), "num"],
    ], groups.filter(wanted), { open: (each) => context.go(`/groups/${segment(each.name)}`), caption: "Consumer groups", empty: "No group has committed an offset." }),
    h("h2", {}, "Subscriptions"), table([
      ["subscription", (each) => link(subscriptionPath(each), each.name)],
      ["topic", (each) => link(`/topics/${segment(each.topic)}`, each.topic)],
      ["owner", (each) => each.owner, "wide"],
      ["lag", (each) => number(each.lag), "num"],
      ["oldest", (each) => duration(each.lag_s), "num"],
      ["in flight", (each) => number(each.in_flight), "num wide"],
      ["redeliveries", (each) => number(each.redeliveries), "num wide"],
      ["dead letters", (each) => number(each.dead_letters), "num wide"],
      ["", (each) => button("Delete", () => destroy(context, each.name, each.topic), "danger"), "num wide"],
    ], subscriptions.filter(wanted), { caption: "Subscriptions", empty: "There is no subscription: BlipMQ, Fujin and Felix clients make them." }));
  };
  search.addEventListener("input", () => { context.keep({ search: search.value }); draw(); });
  draw();
  return { title: "Groups", content: [head("Groups and subscriptions", { actions: [search] }), content] };
}

const subscriptionPath = (each) => `/subscriptions/${segment(each.topic)}/${segment(each.name)}`;
const PAGES_MAX = 50;

async function everything(kind) {
  const found = [];
  let after = {};
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const { [kind]: items, more } = await get(`/${kind}${query(after)}`);
    found.push(...items);
    if (!more || !items.length) break;
    after = { after_topic: items.at(-1).topic, after_name: items.at(-1).name };
  }
  return found;
}

export async function groupPage(context) {
  const name = context.names.group;
  const topics = await get(`/groups/${segment(name)}`);
  const plots = await lagPlots(context, `/groups/${segment(name)}/lag-history`);
  return {
    title: name, stop: plots.stop,
    content: [head(name, { crumbs: [["Groups", "/groups"]], actions: [button("Delete group", () => destroy(context, name), "danger")] }), topics.map((each) => inTopic(context, each, plots.of(each.topic)))],
  };
}

// Plots of the lag in each topic, drawn again with each sample.
async function lagPlots(context, path) {
  const places = new Map();
  let timer = 0;
  const of = (topic) => { if (!places.has(topic)) places.set(topic, h("div", { class: "two" })); return places.get(topic); };
  const draw = async () => {
    const histories = new Map((await get(path)).map((each) => [each.topic, each]));
    if (!context.isCurrent()) return;
    for (const topic of new Set([...places.keys(), ...histories.keys()])) {
      const { at_ms: times, lag, lag_s: seconds } = histories.get(topic) ?? { at_ms: [], lag: [], lag_s: [] };
      fill(of(topic), h("section", { class: "panel" }, plot("Lag", times, lag, (value) => number(Math.round(value)))), h("section", { class: "panel" }, plot("Oldest unread", times, seconds, duration)));
    }
  };
  const step = async () => { await draw().catch(() => {}); timer = setTimeout(step, PLOTS_MS); };
  await step();
  return { of, stop: () => clearTimeout(timer) };
}

export async function subscriptionPage(context) {
  const { topic, subscription: name } = context.names;
  const path = `/topics/${segment(topic)}/subscriptions/${segment(name)}`;
  const described = await get(path);
  const plots = await lagPlots(context, `${path}/lag-history`);
  return {
    title: name, stop: plots.stop,
    content: [
      head(name, { crumbs: [["Groups", "/groups"]], actions: [button("Delete", () => destroy(context, name, topic), "danger")] }),
      plots.of(topic),
      h("div", { class: "two" },
        h("section", { class: "panel" }, h("dl", {}, pair("topic", link(`/topics/${segment(topic)}`, topic)), pair("owner", described.owner || "–"), pair("created", time(described.created_ms)),
          pair("lag", number(described.lag)), pair("oldest unread", duration(described.lag_s)), pair("in flight", number(described.in_flight)), pair("redeliveries", number(described.redeliveries)),
          pair("dead letters", described.dead_letters ? link(`/dead-letters/${segment(topic)}`, number(described.dead_letters)) : "0"), pair("to become dead letters", number(described.waiting)))),
        table([
          ["partition", (each) => each.partition],
          ["next offset", (each) => number(each.next_offset), "num"],
          ["high watermark", (each) => number(each.high_watermark), "num"],
        ], described.partitions, { caption: "Partitions" })),
      resetForm(context, described, `${path}/reset`, {}, "subscription"),
    ],
  };
}

function inTopic(context, group, plots) {
  return h("section", {},
    h("h2", {}, "In ", link(`/topics/${segment(group.topic)}`, group.topic), " ", tag(group.state, group.members.length ? "good" : ""), ` ${number(group.lag)} behind, the oldest for ${duration(group.lag_s)}`),
    plots,
    table([
      ["partition", (each) => each.partition],
      ["committed", (each) => number(each.committed), "num"],
      ["high watermark", (each) => number(each.high_watermark), "num wide"],
      ["lag", (each) => number(each.lag), "num"],
      ["oldest unread", (each) => duration(each.lag_s), "num"],
      ["member", (each) => each.owner || "–", "mono id"],
    ], group.partitions, { caption: `Partitions of ${group.topic}` }),
    group.members.length ? table([
      ["member", (each) => each.id, "mono id"],
      ["instance", (each) => each.instance || "–"],
      ["principal", (each) => each.principal],
      ["last heartbeat", (each) => `${duration(each.silent_ms / 1000)} ago`, "num"],
    ], group.members, { caption: "Members" }) : null,
    resetForm(context, group, `/groups/${segment(group.name)}/reset`, { topic: group.topic }, "group"));
}

// `path` takes the reset, and `fixed` is what else it is told.
function resetForm(context, group, path, fixed, kind) {
  const to = select([["earliest", "the earliest record"], ["latest", "after the latest record"], ["offset", "an offset"], ["time", "a time"], ["shift", "some records further or back"]], "earliest");
  const partition = select([["", "all"], ...group.partitions.map((each) => [String(each.partition), each.partition])], "");
  const offset = h("input", { type: "number", min: "0", value: "0" });
  const moment = h("input", { type: "datetime-local", step: "0.001" });
  const shift = h("input", { type: "number", value: "-1" });
  const inputs = { offset: field("Offset", offset), time: field("Time", moment), shift: field("Records, negative for back", shift) };
  const outcome = h("div", { "aria-live": "polite" });
  const shown = () => { for (const [key, element] of Object.entries(inputs)) element.hidden = key !== to.value; fill(outcome); };
  const given = (input, what) => { if (input.value === "") throw new Error(`Give ${what}.`); return input.value; };
  const body = () => {
    const wanted = { ...fixed, to: to.value };
    if (partition.value !== "") wanted.partition = Number(partition.value);
    if (to.value === "offset") wanted.offset = Number(given(offset, "an offset"));
    if (to.value === "time") wanted.time_ms = new Date(given(moment, "a time")).getTime();
    if (to.value === "shift") wanted.shift = Number(given(shift, "a number of records"));
    return wanted;
  };
  const failed = (error) => fill(outcome, h("div", { class: "error", role: "alert" }, error.message));
  const preview = async () => {
    try {
      const wanted = body();
      const result = await post(path, { ...wanted, preview: true });
      fill(outcome, table([
        ["partition", (each) => each.partition],
        [kind === "group" ? "committed now" : "next now", (each) => number(each.before), "num"],
        ["after the reset", (each) => number(each.after), "num"],
        ["change", (each) => each.before === null ? "–" : `${each.after > each.before ? "+" : ""}${number(each.after - each.before)}`, "num"],
      ], result.partitions, { caption: "What the reset would change" }), button(`Reset the ${kind}`, () => reset(wanted), "danger"));
    } catch (error) { failed(error); }
  };
  // What the preview was of, whatever the form says by now, and once however often it is clicked.
  const reset = async (wanted) => {
    fill(outcome);
    try {
      await post(path, wanted);
      toast(`The ${kind} is reset.`);
      await context.reload();
    } catch (error) { failed(error); }
  };
  for (const input of [offset, moment, shift]) input.addEventListener("input", () => fill(outcome));
  to.addEventListener("change", shown);
  partition.addEventListener("change", shown);
  shown();
  return h("section", { class: "panel", "aria-label": `Reset in ${group.topic}` }, h("h2", {}, "Reset"),
    h("div", { class: "row" }, field("Continue at", to), inputs.offset, inputs.time, inputs.shift, field("Partition", partition), button("Preview", preview)), outcome);
}

function destroy(context, name, topic = "") {
  return confirmName(`Forget where ${name} is`, name, "Delete", async () => {
    await remove(`/groups/${segment(name)}${query({ topic })}`);
    toast(`${name} is deleted.`);
    await context.go("/groups");
  });
}
