// Pipelines that report to the broker or that it may start: stages with rows, rejects, lag and batch time, now and in the last hour.

import { get, post } from "./api.js";
import { ask, button, confirmName, field, fill, h, head, link, segment, select, table, tag, toast } from "./dom.js";
import { duration, number, rate, time } from "./format.js";
import { plot, ratesOf } from "./plots.js";
import { pair } from "./topics.js";

const INTERVAL_MS = 5000;
const CHANGING_INTERVAL_MS = 1000; // while it starts or stops
const NOTHING = { at_ms: [], rows: [], rejects: [], lag: [], batch_ms: [] };

const stateTag = (pipeline) => {
  if (pipeline.stopping) return tag("asked to stop", "warn");
  if (pipeline.alive) return tag(pipeline.state, pipeline.state === "starting" ? "warn" : "good");
  if (pipeline.state === "declared") return tag("not started");
  const silent = ["starting", "running", "stopping"].includes(pipeline.state);
  return tag(silent ? `${pipeline.state}, then silent` : pipeline.state, silent || pipeline.state === "failed" ? "bad" : "");
};
const isChanging = (pipeline) => pipeline.stopping || (pipeline.alive && pipeline.state !== "running");
// Of a pipeline that has never reported, nothing is known.
const sum = (pipeline, name) => (pipeline.run ? pipeline.stages.reduce((total, each) => total + (each[name] ?? 0), 0) : null);
// A lag that no stage has told yet is not known, and neither is the sum with it.
const lagOf = (pipeline) => (pipeline.stages.some((each) => each.lag !== null) ? sum(pipeline, "lag") : null);

// Draws what `load` returns, again and again; `draw` returns whether to look again soon. `now` does so at once.
function refreshing(context, load, draw) {
  let timer = 0;
  const later = (soon) => { clearTimeout(timer); timer = setTimeout(now, soon ? CHANGING_INTERVAL_MS : INTERVAL_MS); };
  const now = async () => {
    let soon = false;
    try { const loaded = await load(); if (context.isCurrent()) soon = draw(loaded); } catch { /* the next attempt may succeed */ }
    if (context.isCurrent()) later(soon);
  };
  return { now, begin: later, stop: () => clearTimeout(timer) };
}

export async function pipelinesPage(context) {
  const content = h("div");
  const draw = (pipelines) => {
    if (content.contains(document.activeElement)) return false;
    fill(content, table([
      ["pipeline", (each) => link(`/pipelines/${segment(each.name)}`, each.name)],
      ["state", stateTag],
      ["stages", (each) => number(each.run ? each.stages.length : null), "num wide"],
      ["rows", (each) => number(sum(each, "rows")), "num"],
      ["rejects", (each) => number(sum(each, "rejects")), "num"],
      ["lag", (each) => number(lagOf(each)), "num"],
      ["owner", (each) => each.owner || "–", "wide"],
      ["last report", (each) => time(each.updated_ms), "nowrap wide"],
    ], pipelines, { open: (each) => context.go(`/pipelines/${segment(each.name)}`), caption: "Pipelines", empty: "No pipeline has reported yet: penstock pipeline run starts one." }));
    return pipelines.some(isChanging);
  };
  const refresh = refreshing(context, () => get("/pipelines"), draw);
  refresh.begin(draw(await get("/pipelines")));
  return { title: "Pipelines", stop: refresh.stop, content: [head("Pipelines"), content] };
}

const processText = (process) => {
  const until = process.ended_ms ? `, ended ${time(process.ended_ms)}${process.exit_code ? ` with code ${process.exit_code}` : ""}` : "";
  return `${process.pid} on the broker's machine, started ${time(process.started_ms)}${until}`;
};

// What to know of the state, in words: announced when it changes, not with every look.
function announcement() {
  const notice = h("div", { role: "status", "aria-live": "polite" });
  let said = "";
  const say = (pipeline) => {
    let [text, kind] = ["", ""];
    if (pipeline.state === "failed") [text, kind] = [`It failed: ${pipeline.message || "the log says why"}`, "bad"];
    else if (pipeline.alive && pipeline.state === "starting") text = "It is starting: Spark takes some seconds.";
    else if (pipeline.stopping) text = "It finishes the batches that have begun, and then stops.";
    if (text === said) return;
    said = text;
    fill(notice, text ? h("div", { class: `notice ${kind}` }, text) : null);
  };
  return { notice, say };
}

// What the process has printed. It stays as it was opened and scrolled.
function logPanel() {
  const text = h("pre", { "aria-label": "Log", tabindex: "0" });
  const details = h("details", {}, h("summary", {}, "Log of the last start"), text);
  const section = h("section", { class: "panel", hidden: true }, details);
  const update = (printed, failed) => {
    section.hidden = !printed;
    if (text.textContent === printed) return;
    text.textContent = printed;
    text.scrollTop = text.scrollHeight;
    if (failed) details.open = true;
  };
  return { section, update };
}

export async function pipelinePage(context) {
  const name = context.names.pipeline;
  const path = `/pipelines/${segment(name)}`;
  const load = async () => {
    const pipeline = (await get("/pipelines")).find((each) => each.name === name);
    if (!pipeline) throw new Error(`No pipeline ${name} has reported.`);
    const [samples, printed] = await Promise.all([get(`${path}/history`), pipeline.startable ? get(`${path}/log`) : { text: "" }]);
    return [pipeline, samples, printed.text];
  };
  const stage = select([], "", { "aria-label": "Stage" });
  const stagePanel = h("div", { class: "row panel" }, field("Last hour of stage", stage));
  const [summary, list, plots] = [h("div"), h("div"), h("div", { class: "two" })];
  const { notice, say } = announcement();
  const printedPanel = logPanel();
  let shown = [];
  let current = null;
  const drawStages = (names) => {
    if (names.join("\n") === [...stage.options].map((each) => each.value).join("\n")) return;
    const wanted = stage.value || context.query.get("stage");
    fill(stage, names.map((each) => h("option", { value: each }, each)));
    stage.value = names.includes(wanted) ? wanted : names[0] ?? "";
  };
  const drawPlots = () => {
    const samples = shown.find((each) => each.name === stage.value) ?? NOTHING;
    const box = (...content) => h("section", { class: "panel" }, plot(...content));
    const later = samples.at_ms.slice(1);
    fill(plots, box("Rows", later, ratesOf(samples.at_ms, samples.rows), rate), box("Lag", samples.at_ms, samples.lag, (value) => number(Math.round(value))),
      box("Batch time", samples.at_ms, samples.batch_ms, (value) => duration(value / 1000)), box("Rejects", later, ratesOf(samples.at_ms, samples.rejects), rate));
  };
  const start = () => ask(`Start the pipeline ${name}`, [h("p", {}, "It runs on the machine of the broker, with the file that the configuration names, and takes memory and processors there. Spark takes some seconds to start.")], {
    action: "Start", submit: async () => { await post(`${path}/start`); toast(`${name} is starting.`); await refresh.now(); },
  });
  const stop = () => confirmName(`Stop the pipeline ${name}`, name, "Stop", async () => {
    const { asked } = await post(`${path}/stop`);
    toast(asked ? "It stops with its next report." : "It is not running.");
    await refresh.now();
  });
  const mayStart = () => current.startable && !current.alive;
  const action = button("", () => (mayStart() ? start() : stop())); // one button, so that the focus stays where it is
  const draw = ([pipeline, samples, printed]) => {
    [current, shown] = [pipeline, samples];
    action.textContent = mayStart() ? "Start" : "Stop";
    action.className = mayStart() ? "primary" : "danger";
    action.disabled = !mayStart() && (!pipeline.alive || pipeline.stopping);
    say(pipeline);
    const reported = () => [pair("owner", pipeline.owner || "–"), pair("run", h("span", { class: "mono" }, pipeline.run)),
      pair("started", time(pipeline.started_ms)), pair("last report", time(pipeline.updated_ms))];
    fill(summary, h("section", { class: "panel" }, h("dl", {}, pair("state", stateTag(pipeline)), pipeline.run ? reported() : null,
      pipeline.process ? pair("process", processText(pipeline.process)) : null, pipeline.message && pipeline.state !== "failed" ? pair("message", pipeline.message) : null)));
    printedPanel.update(printed, pipeline.state === "failed");
    fill(list, table([
      ["stage", (each) => each.name],
      ["state", (each) => tag(each.state, each.state === "failed" ? "bad" : each.state === "running" ? "good" : "")],
      ["rows", (each) => number(each.rows), "num"],
      ["rejects", (each) => number(each.rejects), "num"],
      ["dropped", (each) => number(each.dropped), "num wide"],
      ["late", (each) => number(each.late), "num wide"],
      ["future", (each) => number(each.future), "num wide"],
      ["lag", (each) => number(each.lag), "num"],
      ["batches", (each) => number(each.batches), "num wide"],
      ["last batch", (each) => each.batches ? duration(each.batch_ms / 1000) : "–", "num wide"],
    ], pipeline.stages, { caption: "Stages", empty: "The pipeline has reported no stage yet." }));
    drawStages(pipeline.stages.map((each) => each.name));
    stagePanel.hidden = plots.hidden = !pipeline.stages.length;
    drawPlots();
    return isChanging(pipeline);
  };
  stage.addEventListener("change", () => { context.keep({ stage: stage.value }); drawPlots(); });
  const refresh = refreshing(context, load, draw);
  refresh.begin(draw(await load()));
  return {
    title: name, stop: refresh.stop,
    content: [head(name, { crumbs: [["Pipelines", "/pipelines"]], actions: [action] }), notice, summary, printedPanel.section, list, stagePanel, plots],
  };
}
