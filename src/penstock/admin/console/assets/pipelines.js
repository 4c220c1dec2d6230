// Pipelines that report to the broker: stages with rows, rejects, lag and batch time, now and in the last hour.

import { get, post } from "./api.js";
import { button, confirmName, field, fill, h, head, link, segment, select, table, tag, toast } from "./dom.js";
import { duration, number, rate, time } from "./format.js";
import { plot, ratesOf } from "./plots.js";
import { pair } from "./topics.js";

const INTERVAL_MS = 5000;

const stateTag = (pipeline) => {
  if (pipeline.stopping) return tag("asked to stop", "warn");
  if (pipeline.alive) return tag(pipeline.state, "good");
  const silent = ["starting", "running", "stopping"].includes(pipeline.state);
  return tag(silent ? `${pipeline.state}, then silent` : pipeline.state, silent || pipeline.state === "failed" ? "bad" : "");
};
const sum = (pipeline, name) => pipeline.stages.reduce((total, each) => total + (each[name] ?? 0), 0);
// A lag that no stage has told yet is not known, and neither is the sum with it.
const lagOf = (pipeline) => (pipeline.stages.some((each) => each.lag !== null) ? sum(pipeline, "lag") : null);

// Draws what `load` returns now and again every few seconds, unless somebody is in the middle of it.
function refreshing(context, load, draw) {
  let timer = 0;
  const step = async () => {
    try { const loaded = await load(); if (context.isCurrent()) draw(loaded); } catch { /* the next attempt may succeed */ }
    timer = setTimeout(step, INTERVAL_MS);
  };
  timer = setTimeout(step, INTERVAL_MS);
  return () => clearTimeout(timer);
}

export async function pipelinesPage(context) {
  const content = h("div");
  const draw = (pipelines) => {
    if (content.contains(document.activeElement)) return;
    fill(content, table([
      ["pipeline", (each) => link(`/pipelines/${segment(each.name)}`, each.name)],
      ["state", stateTag],
      ["stages", (each) => number(each.stages.length), "num wide"],
      ["rows", (each) => number(sum(each, "rows")), "num"],
      ["rejects", (each) => number(sum(each, "rejects")), "num"],
      ["lag", (each) => number(lagOf(each)), "num"],
      ["owner", (each) => each.owner || "–", "wide"],
      ["last report", (each) => time(each.updated_ms), "nowrap wide"],
    ], pipelines, { open: (each) => context.go(`/pipelines/${segment(each.name)}`), caption: "Pipelines", empty: "No pipeline has reported yet: penstock pipeline run starts one." }));
  };
  draw(await get("/pipelines"));
  return { title: "Pipelines", stop: refreshing(context, () => get("/pipelines"), draw), content: [head("Pipelines"), content] };
}

export async function pipelinePage(context) {
  const name = context.names.pipeline;
  const load = async () => {
    const pipeline = (await get("/pipelines")).find((each) => each.name === name);
    if (!pipeline) throw new Error(`No pipeline ${name} has reported.`);
    return [pipeline, await get(`/pipelines/${segment(name)}/history`)];
  };
  const [first, history] = await load();
  const stages = first.stages.map((each) => [each.name, each.name]);
  const wanted = context.query.get("stage");
  const stage = select(stages, stages.some(([key]) => key === wanted) ? wanted : stages[0]?.[0] ?? "", { "aria-label": "Stage" });
  const [summary, list, plots] = [h("div"), h("div"), h("div", { class: "two" })];
  let shown = history;
  const drawPlots = () => {
    const samples = shown.find((each) => each.name === stage.value) ?? { at_ms: [], rows: [], rejects: [], lag: [], batch_ms: [] };
    const box = (...content) => h("section", { class: "panel" }, plot(...content));
    const later = samples.at_ms.slice(1);
    fill(plots, box("Rows", later, ratesOf(samples.at_ms, samples.rows), rate), box("Lag", samples.at_ms, samples.lag, (value) => number(Math.round(value))),
      box("Batch time", samples.at_ms, samples.batch_ms, (value) => duration(value / 1000)), box("Rejects", later, ratesOf(samples.at_ms, samples.rejects), rate));
  };
  const draw = ([pipeline, samples]) => {
    shown = samples;
    fill(summary, h("section", { class: "panel" }, h("dl", {}, pair("state", stateTag(pipeline)), pair("owner", pipeline.owner || "–"), pair("run", h("span", { class: "mono" }, pipeline.run)),
      pair("started", time(pipeline.started_ms)), pair("last report", time(pipeline.updated_ms)), pipeline.message ? pair("message", pipeline.message) : null)));
    fill(list, table([
      ["stage", (each) => each.name],
      ["state", (each) => tag(each.state, each.state === "failed" ? "bad" : each.state === "running" ? "good" : "")],
      ["rows", (each) => number(each.rows), "num"],
      ["rejects", (each) => number(each.rejects), "num"],
      ["lag", (each) => number(each.lag), "num"],
      ["batches", (each) => number(each.batches), "num wide"],
      ["last batch", (each) => each.batches ? duration(each.batch_ms / 1000) : "–", "num wide"],
    ], pipeline.stages, { caption: "Stages", empty: "The pipeline has reported no stage yet." }));
    drawPlots();
  };
  stage.addEventListener("change", () => { context.keep({ stage: stage.value }); drawPlots(); });
  draw([first, history]);
  const stop = () => confirmName(`Stop the pipeline ${name}`, name, "Stop", async () => {
    const { asked } = await post(`/pipelines/${segment(name)}/stop`);
    toast(asked ? "It stops with its next report." : "It is not running.");
    await context.reload();
  });
  return {
    title: name, stop: refreshing(context, load, draw),
    content: [head(name, { crumbs: [["Pipelines", "/pipelines"]], actions: [button("Stop", stop, "danger", { disabled: !first.alive || first.stopping })] }), summary, list,
      stages.length ? h("div", { class: "row panel" }, field("Last hour of stage", stage)) : null, plots],
  };
}
