// Records of a topic: jump to an offset, a time or the latest; filter; follow the tail; look at one; produce.

import { get, getRecords, post, query, topicPath } from "./api.js";
import { ask, button, copy, field, fill, h, head, moment as when, segment, select, table, tag, toast } from "./dom.js";
import { bytes, cell, hex, isJson, number, pretty, time } from "./format.js";
import { base64Of, bytesOf, save, saveRecords, shownText } from "./downloads.js";
import { conditionButton, filterInput } from "./filters.js";
import { pair } from "./topics.js";

const TAIL_MS = 1000;
const TAIL_ROWS = 500;
const HEX_BYTES_MAX = 64 * 1024;
const FLYMQ_ADDRESS = "127.0.0.1:9092";
const PLACES = [["latest", "Latest"], ["earliest", "Earliest"], ["offset", "Offset"], ["time", "Time"]];

export async function recordsPage(context) {
  const name = context.names.topic;
  const topic = await get(topicPath(name));
  const given = (key, fallback = "") => context.query.get(key) ?? fallback;
  const at = select(PLACES, PLACES.some(([key]) => key === given("at")) ? given("at") : "latest", { "aria-label": "Begin at" });
  const partition = select([["", "all"], ...topic.partitions.map((each) => [String(each.partition), each.partition])], given("partition"));
  const offset = h("input", { type: "number", min: "0", value: given("offset") });
  const moment = h("input", { type: "datetime-local", step: "0.001", value: given("time") });
  const filter = filterInput(given("filter"), "text, expression, or $.customer.id = 42 and $header.source = web");
  const limit = select([["20", "20"], ["50", "50"], ["100", "100"], ["500", "500"]], given("limit", "50"));
  const places = { offset: field("Offset", offset), time: field("Time", moment) };
  const list = h("div");
  const detail = h("div", { "aria-live": "polite" });
  const note = h("span", { class: "dim", role: "status" });
  const state = { rows: [], next: "", tailing: false, timer: 0, record: given("record") };

  const place = () => {
    const values = { at: at.value, partition: partition.value, filter: filter.value, limit: limit.value };
    if (at.value === "offset") values.offset = offset.value || "0";
    if (at.value === "time") values.time = moment.value;
    return values;
  };
  const keep = () => context.keep({ ...place(), record: state.record });
  const close = () => {
    state.record = "";
    keep();
    fill(detail);
    for (const row of list.querySelectorAll("tr[aria-selected]")) row.removeAttribute("aria-selected");
  };
  const asked = ({ time: text, ...values }) => ({ ...values, ...(values.at === "time" ? { time_ms: text ? new Date(text).getTime() : 0 } : {}) });
  const load = async () => {
    stopTail();
    const values = place();
    keep();
    try { take(await getRecords(topicPath(name, `/records${query(asked(values))}`)), true); } catch (error) {
      fill(note);
      more.disabled = download.disabled = true;
      fill(list, h("div", { class: "notice bad", role: "alert" }, error.message));
    }
  };
  const take = (page, replace) => {
    if (!context.isCurrent()) return;
    state.rows = replace ? page.records : [...state.rows, ...page.records].slice(-TAIL_ROWS);
    state.next = page.next_positions;
    more.disabled = page.end;
    fill(note, `${number(state.rows.length)} records shown`, filter.value ? `, ${number(page.scanned)} scanned` : "", page.end ? ", up to the end" : "");
    draw();
  };
  const follow = async () => {
    try {
      const page = await getRecords(topicPath(name, `/records${query({ at: "positions", positions: state.next, filter: filter.value, limit: 500 })}`));
      if (!state.tailing) return;
      if (page.records.length || !page.end) take(page, false);
      if (!page.end) {
        // Faster than a page can show: jump to the newest, and say so.
        take(await getRecords(topicPath(name, `/records${query({ at: "latest", partition: partition.value, filter: filter.value, limit: 100 })}`)), false);
        fill(note, "Records arrive faster than they can be read: this is a sample of them.");
      }
    } catch (error) { toast(error.message, "bad"); stopTail(); return; }
    state.timer = setTimeout(follow, TAIL_MS);
  };
  const stopTail = () => {
    state.tailing = false;
    clearTimeout(state.timer);
    tail.setAttribute("aria-pressed", "false");
    fill(tail, "Live tail");
  };
  const tail = button("Live tail", async () => {
    if (state.tailing) { stopTail(); return; }
    at.value = "latest";
    shown();
    await load();
    state.tailing = true;
    tail.setAttribute("aria-pressed", "true");
    fill(tail, "Pause");
    state.timer = setTimeout(follow, TAIL_MS);
  }, "", { "aria-pressed": "false" });
  const more = button("Next page", async () => take(await getRecords(topicPath(name, `/records${query({ at: "positions", positions: state.next, filter: filter.value, limit: limit.value })}`)), true), "", { disabled: true });
  const download = button("Download", () => saveRecords(name, state.rows).catch((error) => toast(error.message, "bad")), "", { title: "The records shown, in full, as JSON Lines" });
  const draw = () => {
    download.disabled = !state.rows.length;
    const newestFirst = state.tailing || at.value === "latest";
    fill(list, table([
      ["time", (each) => when(time(each.timestamp_ms)), "nowrap mono"],
      ["partition", (each) => each.partition, "num wide"],
      ["offset", (each) => each.offset, "num mono wide"],
      ["key", (each) => each.key === null ? h("span", { class: "dim" }, "–") : cell(each.key), "key mono"],
      ["value", (each) => each.value === null ? tag("tombstone") : [each.fault ? tag("not as its schema", "warn") : null, inOneLine(each)], "cut mono"],
      ["size", (each) => bytes(each.value?.size ?? 0), "num wide"],
    ], newestFirst ? [...state.rows].reverse() : state.rows, { open: (each, row) => openRecord(each, row), caption: "Records", empty: "No record is here. Choose another place, or produce one." }));
  };
  const openRecord = async (each, row) => {
    for (const other of list.querySelectorAll("tr[aria-selected]")) other.removeAttribute("aria-selected");
    row?.setAttribute("aria-selected", "true");
    try {
      const record = await getRecords(topicPath(name, `/partitions/${each.partition}/records/${each.offset}`));
      const broker = await address();
      if (!context.isCurrent()) return;
      fill(detail, recordPanel(name, record, broker, close));
      state.record = `${each.partition}:${each.offset}`;
      keep();
      detail.scrollIntoView({ block: "nearest" });
    } catch (error) { toast(error.message, "bad"); }
  };
  const shown = () => { for (const [key, element] of Object.entries(places)) element.hidden = at.value !== key; };
  at.addEventListener("change", shown);
  shown();
  const form = h("form", { class: "row panel", onsubmit: (event) => { event.preventDefault(); load(); } },
    field("Begin at", at), places.offset, places.time, field("Partition", partition), field("Filter", filter, "grow filter"), conditionButton(filter, load), field("Records", limit),
    h("button", { class: "primary" }, "Go"), tail);
  await load();
  const [shownPartition, shownOffset] = state.record.split(":");
  if (/^\d+:\d+$/.test(state.record)) await openRecord({ partition: shownPartition, offset: shownOffset });
  return {
    title: `Records of ${name}`, stop: stopTail,
    content: [head("Records", { crumbs: [["Topics", "/topics"], [name, `/topics/${segment(name)}`]], actions: [download, button("Produce", () => produce(name, load), "primary")] }),
      form, detail, list, h("div", { class: "row" }, more, note)],
  };
}

// A value that is JSON is shown from its own text, whatever was decoded: that has all that was written.
const isPlain = (record) => record.decoded === null || (record.value?.text !== null && isJson(record.value.text));
const inOneLine = (record) => (isPlain(record) ? cell(record.value) : JSON.stringify(record.decoded));

function shellQuote(text) { return `'${text.replaceAll("'", "'\\''")}'`; }

// Where programs find the broker, as far as the API says.
async function address() {
  try {
    const found = (await get("/status")).listeners.find((each) => each.name === "flymq");
    return found?.address ? found.address.replace(/^(0\.0\.0\.0|\[::\]|::)(?=:\d+$)/, location.hostname) : FLYMQ_ADDRESS;
  } catch { return FLYMQ_ADDRESS; }
}

// How a value can be shown, the best way first.
function viewsOf(record) {
  const { value } = record;
  const data = () => hex(value.text === null ? value.base64 : base64Of(value.text), HEX_BYTES_MAX);
  if (!isPlain(record)) return [["Decoded", () => JSON.stringify(record.decoded, null, 2)], ["Hex", data]];
  if (value.text === null) return [["Hex", data]];
  return [...(isJson(value.text) ? [["Formatted", () => pretty(value.text)]] : []), ["Text", () => value.text], ["Hex", data]];
}

function valueView(record) {
  const content = h("pre", { tabindex: "0", "aria-label": "Value" });
  if (record.value === null) return [h("h2", {}, "Value"), fill(content, "null (a tombstone)")];
  const buttons = viewsOf(record).map(([name, text]) => {
    const each = button(name, () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === each));
      fill(content, shownText(text()));
    });
    return each;
  });
  buttons[0].click();
  return [h("div", { class: "row views" }, h("h2", {}, "Value"), buttons.length > 1 ? buttons : null), content];
}

function recordPanel(topic, record, broker, close) {
  const place = `--partition ${record.partition} --from ${record.offset} --max 1`;
  const codes = {
    CLI: `penstock consume ${shellQuote(topic)} ${place} --server ${shellQuote(`flymq://${broker}`)}`,
    Python: `import penstock\n\nwith penstock.connect("flymq://${broker}") as client:\n    [record] = client.fetch(${JSON.stringify(topic)}, ${record.partition}, ${record.offset}, max_records=1).records\n    print(record.key, record.value)\n`,
    Spark: `record = (spark.read.format("penstock").option("penstock.bootstrap", "${broker}").option("subscribe", ${JSON.stringify(topic)}).load()\n    .where("partition = ${record.partition} AND offset = ${record.offset}"))\n`,
  };
  const value = record.value;
  return h("section", { class: "panel", "aria-label": "One record" },
    h("div", { class: "row" }, h("h2", { class: "grow" }, `Partition ${record.partition}, offset ${record.offset}`),
      Object.entries(codes).map(([name, code]) => button(`Copy as ${name}`, () => copy(code))),
      value === null ? null : button("Download value", () => save(`${topic}-${record.partition}-${record.offset}${isPlain(record) && value.text !== null ? ".txt" : ".bin"}`, bytesOf(value))), button("Close", close)),
    h("dl", {}, pair("time", time(record.timestamp_ms)), pair("key", record.key === null ? "none" : h("span", { class: "mono" }, cell(record.key))),
      pair("size", bytes(value?.size ?? 0)), record.schema ? pair("schema", record.schema) : null, record.fault ? pair("fault", h("span", { class: "bad" }, record.fault)) : null,
      record.headers.map((each) => pair(`header ${each.name}`, h("span", { class: "mono" }, cell(each.value))))),
    valueView(record));
}

function produce(topic, done) {
  const key = h("input", { autocomplete: "off", placeholder: "none" });
  const value = h("textarea", { autofocus: true });
  const partition = h("input", { type: "number", min: "0", placeholder: "by key, or in turn" });
  const headers = h("input", { placeholder: "name=value, name=value" });
  return ask(`Produce to ${topic}`, [field("Key", key), field("Value", value), field("Headers", headers), field("Partition", partition)], {
    action: "Produce",
    submit: async () => {
      const pairs = headers.value.split(",").map((text) => text.trim()).filter(Boolean).map((text) => { const at = text.indexOf("="); return { name: at < 0 ? text : text.slice(0, at), value: at < 0 ? null : text.slice(at + 1) }; });
      const record = { value: value.value, key: key.value || null, headers: pairs };
      if (partition.value !== "") record.partition = Number(partition.value);
      const [placed] = await post(topicPath(topic, "/records"), { records: [record] });
      toast(`Stored in partition ${placed.partition} at offset ${placed.offset}.`);
      await done();
    },
  });
}
