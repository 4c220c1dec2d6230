// The broker at a glance: rates, latency, connections, disk, and what is wrong now.

import { get } from "./api.js";
import { fill, h, head, link, spark, table, tag } from "./dom.js";
import { bytes, duration, number, quantile, rate, time } from "./format.js";

const INTERVAL_MS = 2000;
const SAMPLES_MAX = 60;

export async function overviewPage(context) {
  const content = h("div");
  const history = { records: [], bytes: [] };
  let before = null;
  let timer = 0;
  const step = async () => {
    try {
      const status = await get("/status");
      if (!context.isCurrent()) return;
      const seconds = before ? Math.max((status.now_ms - before.now_ms) / 1000, 0.001) : 0;
      for (const [name, key] of [["records", "appended_records"], ["bytes", "appended_bytes"]]) {
        history[name].push(before ? Math.max(0, status[key] - before[key]) / seconds : 0);
        if (history[name].length > SAMPLES_MAX) history[name].shift();
      }
      fill(content, view(status, before, seconds, history));
      before = status;
    } catch (error) {
      fill(content, head("Overview"), h("div", { class: "notice bad", role: "alert" }, error.message));
    }
    timer = setTimeout(step, INTERVAL_MS);
  };
  await step();
  return { title: "Overview", content, stop: () => clearTimeout(timer) };
}

const tile = (label, value, note, extra) =>
  h("div", { class: "tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "note" }, note), extra);

function view(status, before, seconds, history) {
  const p99 = quantile(status.flush, 0.99);
  const lag = quantile(status.loop_lag, 0.99);
  const used = status.disk_total_bytes ? 1 - status.disk_free_bytes / status.disk_total_bytes : 0;
  return [
    head("Overview", { actions: [tag(status.ready ? "ready" : status.readiness.state === "ready" ? "degraded" : status.readiness.state, status.ready ? "good" : "bad")] }),
    wrong(status, lag, used),
    h("div", { class: "grid" },
      tile("Records in", rate(history.records.at(-1)), `${number(status.appended_records)} since the start`, spark(history.records)),
      tile("Bytes in", `${bytes(history.bytes.at(-1))}/s`, `${bytes(status.appended_bytes)} since the start`, spark(history.bytes)),
      tile("Flush, 99 %", p99 === null ? "–" : `≤ ${duration(p99)}`, `${number(status.commits)} commits, ${number(status.commit_errors)} failed`),
      tile("Event loop lag, 99 %", lag === null ? "–" : `≤ ${duration(lag)}`, "since the start"),
      tile("Topics", number(status.topics), link("/topics", `${number(status.partitions)} partitions`)),
      tile("Connections", number(status.listeners.reduce((sum, each) => sum + each.connections, 0)), `${status.listeners.length} listeners`),
      tile("Subscriptions", number(status.subscriptions), `${number(status.in_flight)} deliveries in flight`),
      tile("Disk free", bytes(status.disk_free_bytes), status.disk_total_bytes ? `${Math.round(used * 100)} % of ${bytes(status.disk_total_bytes)} used` : "")),
    table([
      ["listener", (each) => each.name],
      ["connections", (each) => number(each.connections), "num"],
      ["requests/s", (each) => (before ? rate(delta(each, before, "requests") / seconds) : "–"), "num"],
      ["in", (each) => (before ? `${bytes(delta(each, before, "received_bytes") / seconds)}/s` : "–"), "num"],
      ["out", (each) => (before ? `${bytes(delta(each, before, "sent_bytes") / seconds)}/s` : "–"), "num"],
      ["requests", (each) => number(each.requests), "num"],
      ["errors", (each) => number(each.errors), "num"],
    ], status.listeners, { caption: "Listeners", empty: "No listener is on." }),
    h("p", { class: "dim" }, `Penstock ${status.version}, up for ${duration((status.now_ms - status.started_ms) / 1000)}, since ${time(status.started_ms)}`),
  ];
}

function delta(listener, before, key) {
  const old = before.listeners.find((each) => each.name === listener.name);
  return Math.max(0, listener[key] - (old ? old[key] : 0));
}

// As the suggested alerts see it.
function wrong(status, lag, used) {
  const found = [];
  for (const each of status.readiness.failed_partitions ?? []) found.push(`Partition ${each.partition} of ${each.topic} refuses writes: ${each.failure}`);
  for (const each of status.readiness.failing_tasks ?? []) found.push(`The background task ${each.task} fails: ${each.failure}`);
  if (status.commit_errors) found.push(`${number(status.commit_errors)} commits have failed since the start.`);
  if (used > 0.9) found.push("The disk is more than 90 % full.");
  if (lag !== null && lag >= 0.25) found.push("The event loop lags by 250 ms or more.");
  return found.map((text) => h("div", { class: "notice bad", role: "alert" }, text));
}
