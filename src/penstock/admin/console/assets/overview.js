// The broker at a glance: rates, latency, connections, disk, and what is wrong now.

import { get } from "./api.js";
import { fill, h, head, link, table, tag } from "./dom.js";
import { bytes, duration, number, quantile, rate, time } from "./format.js";
import { plot, ratesOf, spark } from "./plots.js";

const INTERVAL_MS = 2000;
const SAMPLES_MAX = 60;
const PLOTS_MS = 10000;
const COUNTS = ["received_records", "sent_records", "received_bytes", "sent_bytes", "appended_records"];
const byteRate = (value) => `${bytes(value)}/s`;

export async function overviewPage(context) {
  const content = h("div");
  const plots = h("div", { class: "two" });
  const history = Object.fromEntries(COUNTS.map((name) => [name, []]));
  let before = null;
  let alerts = [];
  let timer = 0;
  const step = async () => {
    try {
      const status = await get("/status");
      if (!context.isCurrent()) return;
      const seconds = before ? Math.max((status.now_ms - before.now_ms) / 1000, 0.001) : 0;
      for (const name of COUNTS) {
        history[name].push(before ? Math.max(0, total(status, name) - total(before, name)) / seconds : 0);
        if (history[name].length > SAMPLES_MAX) history[name].shift();
      }
      fill(content, view(status, before, seconds, history, plots, alerts));
      before = status;
    } catch (error) {
      fill(content, head("Overview"), h("div", { class: "notice bad", role: "alert" }, error.message));
    }
    timer = setTimeout(step, INTERVAL_MS);
  };
  const drawPlots = async () => {
    const { at_ms: times, ...samples } = await get("/history");
    const rates = (name) => ratesOf(times, samples[name]);
    const box = (title, values, show) => h("section", { class: "panel" }, plot(title, times.slice(1), values, show));
    fill(plots, box("Records in", rates("received_records"), rate), box("Records out", rates("sent_records"), rate),
      box("Bytes in", rates("received_bytes"), byteRate), box("Bytes out", rates("sent_bytes"), byteRate));
  };
  const loadAlerts = async () => { alerts = await get("/alerts"); };
  const plotsStep = async () => { await Promise.all([drawPlots(), loadAlerts()]).catch(() => {}); plotsTimer = setTimeout(plotsStep, PLOTS_MS); };
  let plotsTimer = 0;
  await plotsStep();
  await step();
  return { title: "Overview", content, stop: () => { clearTimeout(timer); clearTimeout(plotsTimer); } };
}

// Days are as good as it gets: the pace of an hour says no more.
const fullIn = (seconds) => (seconds === null ? "" : seconds > 365 * 86400 ? ", more than a year left" : `, full in ${duration(seconds)}`);

const tile = (label, value, note, extra) =>
  h("div", { class: "tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), h("div", { class: "note" }, note), extra);

function view(status, before, seconds, history, plots, alerts) {
  const p99 = quantile(status.flush, 0.99);
  const lag = quantile(status.loop_lag, 0.99);
  const counted = (label, name, perSecond, show) =>
    tile(label, perSecond(history[name].at(-1)), `${show(total(status, name))} since the start`, spark(history[name]));
  const column = (name, show) => (each) => (before ? show(delta(each, before, name) / seconds) : "–");
  const used = status.disk_total_bytes ? 1 - status.disk_free_bytes / status.disk_total_bytes : 0;
  return [
    head("Overview", { actions: [tag(status.ready ? "ready" : status.readiness.state === "ready" ? "degraded" : status.readiness.state, status.ready ? "good" : "bad")] }),
    alerts.map((each) => h("div", { class: `notice ${each.severity === "critical" ? "bad" : ""}`, role: "alert" }, h("b", {}, each.summary), ` since ${time(each.since_ms)}. ${each.action}`)),
    h("div", { class: "grid" },
      counted("Records in", "received_records", rate, number),
      counted("Records out", "sent_records", rate, number),
      counted("Bytes in", "received_bytes", byteRate, bytes),
      counted("Bytes out", "sent_bytes", byteRate, bytes),
      tile("Records stored", rate(history.appended_records.at(-1)), `${number(status.appended_records)} since the start, ${bytes(status.appended_bytes)}`, spark(history.appended_records)),
      tile("Flush, 99 %", p99 === null ? "–" : `≤ ${duration(p99)}`, `${number(status.commits)} commits, ${number(status.commit_errors)} failed`),
      tile("Event loop lag, 99 %", lag === null ? "–" : `≤ ${duration(lag)}`, "since the start"),
      tile("Topics", number(status.topics), link("/topics", `${number(status.partitions)} partitions`)),
      tile("Connections", number(status.listeners.reduce((sum, each) => sum + each.connections, 0)), `${status.listeners.length} listeners`),
      tile("Subscriptions", number(status.subscriptions), `${number(status.in_flight)} deliveries in flight`),
      tile("Disk free", bytes(status.disk_free_bytes), status.disk_total_bytes ? `${Math.round(used * 100)} % of ${bytes(status.disk_total_bytes)} used${fullIn(status.disk_full_in_s)}` : "")),
    plots,
    table([
      ["listener", (each) => each.name],
      ["address", (each) => each.address, "mono wide"],
      ["connections", (each) => number(each.connections), "num wide"],
      ["records in", column("received_records", rate), "num"],
      ["records out", column("sent_records", rate), "num"],
      ["bytes in", column("received_bytes", byteRate), "num wide"],
      ["bytes out", column("sent_bytes", byteRate), "num wide"],
      ["requests", column("requests", rate), "num wide"],
      ["all records in", (each) => number(each.received_records), "num wide"],
      ["all records out", (each) => number(each.sent_records), "num wide"],
      ["errors", (each) => number(each.errors), "num"],
    ], status.listeners, { caption: "Listeners", empty: "No listener is on." }),
    h("p", { class: "dim" }, `Penstock ${status.version}, up for ${duration((status.now_ms - status.started_ms) / 1000)}, since ${time(status.started_ms)}`),
  ];
}

// A count of the whole broker, or the sum of a count of its listeners.
const total = (status, name) => status[name] ?? status.listeners.reduce((sum, each) => sum + each[name], 0);

function delta(listener, before, key) {
  const old = before.listeners.find((each) => each.name === listener.name);
  return Math.max(0, listener[key] - (old ? old[key] : 0));
}
