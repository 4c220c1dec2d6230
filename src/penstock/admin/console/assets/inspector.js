// The protocol inspector: open connections, and the frames of one of them, field by field.

import { get, post, query, remove } from "./api.js";
import { button, field, fill, h, head, link, moment, panel, segment, select, table, tag, toast } from "./dom.js";
import { bytes, number, time } from "./format.js";

const INTERVAL_MS = 1000;
const STATES = {
  waiting: ["waits for a connection", "warn"], running: ["running", "good"], closed: ["the connection is closed", ""],
  full: ["full: start another one to see more", "warn"], stopped: ["stopped", ""],
};

export async function inspectorPage(context) {
  const [connections, inspections, status] = [await get("/connections"), await get("/inspections"), await get("/status")];
  const payloads = h("input", { type: "checkbox" });
  const listener = select(status.listeners.map((each) => [each.name, each.name]), status.listeners[0]?.name ?? "", { "aria-label": "Listener" });
  const start = (body) => async () => {
    try { const made = await post("/inspections", { ...body(), payloads: payloads.checked }); await context.go(`/inspector/${segment(made.id)}`); } catch (error) { toast(error.message, "bad"); }
  };
  return {
    title: "Protocol inspector",
    content: [
      head("Protocol inspector", { actions: [button("Refresh", context.reload)] }),
      panel(h("div", { class: "row" }, field("The next connection of", listener), button("Inspect the next one", start(() => ({ listener: listener.value })), "primary"),
        h("label", { class: "check" }, payloads, "Show keys, values and headers")),
      h("p", { class: "dim" }, "An inspection records at most 4 MiB, 1,000 frames and the first 256 streams of a QUIC connection, and ends a minute after the page was closed. Passwords, keys and tokens are never shown.")),
      inspections.length ? [h("h2", {}, "Inspections"), table([
        ["listener", (each) => link(`/inspector/${segment(each.id)}`, each.listener)],
        ["connection", (each) => each.peer || "–", "mono"],
        ["state", (each) => tag(...STATES[each.state])],
      ], inspections, { open: (each) => context.go(`/inspector/${segment(each.id)}`), caption: "Inspections" })] : null,
      h("h2", {}, "Open connections"),
      table([
        ["listener", (each) => each.listener],
        ["from", (each) => each.peer, "mono"],
        ["certificate", (each) => each.certificate ?? "–", "wide"],
        ["", (each) => button("Inspect", start(() => ({ listener: each.listener, peer: each.peer }))), "num"],
      ], connections, { caption: "Open connections", empty: "No client is connected." }),
    ],
  };
}

export async function inspectionPage(context) {
  const path = `/inspections/${segment(context.names.inspection)}`;
  const [state, list, detail] = [h("span"), h("div"), h("div", { "aria-live": "polite" })];
  const shown = h("input", { type: "search", placeholder: "Filter by name or field", "aria-label": "Filter frames", "data-search": true, value: context.query.get("filter") ?? "" });
  let frames = [];
  let timer = 0;
  const open = (frame, row) => {
    for (const other of list.querySelectorAll("tr[aria-selected]")) other.removeAttribute("aria-selected");
    row?.setAttribute("aria-selected", "true");
    fill(detail, h("section", { class: "panel", "aria-label": "One frame" },
      h("div", { class: "row" }, h("h2", { class: "grow" }, `${frame.number}: ${frame.name}, ${bytes(frame.size)}, ${frame.direction} ${time(frame.at_ms)}${frame.stream ? `, stream ${frame.stream}` : ""}`), button("Close", () => fill(detail))),
      h("dl", {}, frame.fields.flatMap((each) => [h("dt", { class: "mono" }, each.name), h("dd", { class: "mono" }, each.value || "–")]))));
  };
  const inWords = (frame) => frame.fields.map((each) => `${each.name}=${each.value}`).join("  ");
  const draw = () => {
    const wanted = shown.value.toLowerCase();
    fill(list, table([
      ["time", (each) => moment(time(each.at_ms)), "nowrap mono wide"],
      ["", (each) => (each.direction === "received" ? tag("← client") : tag("→ client", "good")), "nowrap"],
      ["frame", (each) => each.name, "mono nowrap"],
      ["fields", inWords, "cut mono"],
      ["size", (each) => (each.size ? bytes(each.size) : ""), "num wide"],
    ], frames.filter((each) => `${each.name} ${inWords(each)}`.toLowerCase().includes(wanted)), { open, caption: "Frames", empty: frames.length ? "No frame matches." : "Nothing was said yet." }));
  };
  const ask = async () => {
    const answer = await get(`${path}${query({ after: frames.length })}`);
    if (!context.isCurrent()) return false;
    fill(state, answer.inspection.listener, " ", h("span", { class: "mono" }, answer.inspection.peer || "the next connection"), " ", tag(...STATES[answer.inspection.state]), ` ${number(frames.length + answer.frames.length)} frames `, answer.inspection.more_streams ? tag("only the first 256 streams are shown", "warn") : null);
    if (answer.frames.length || !frames.length) {
      frames = [...frames, ...answer.frames];
      if (!list.contains(document.activeElement)) draw();
    }
    return ["waiting", "running"].includes(answer.inspection.state);
  };
  const step = async () => {
    try { if (await ask()) timer = setTimeout(step, INTERVAL_MS); } catch (error) { toast(error.message, "bad"); }
  };
  shown.addEventListener("input", () => { context.keep({ filter: shown.value }); draw(); });
  if (await ask()) timer = setTimeout(step, INTERVAL_MS);
  const forget = async () => { try { await remove(path); } catch { /* it has ended already */ } await context.go("/inspector"); };
  return {
    title: "Inspection", stop: () => clearTimeout(timer),
    content: [head("Inspection", { crumbs: [["Protocol inspector", "/inspector"]], actions: [shown, button("Stop and forget", forget, "danger")] }), h("p", { role: "status" }, state), detail, list],
  };
}
