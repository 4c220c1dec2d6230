// Dead letters: by topic and reason, one in full, replayed as it is or edited, or by filter after a dry run, purged.

import { get, post, query, remove, topicPath } from "./api.js";
import { ask, button, confirmName, field, fill, h, head, link, moment, panel, segment, table, tag, toast } from "./dom.js";
import { bytesOf, save, shownText } from "./downloads.js";
import { conditionButton, filterInput } from "./filters.js";
import { bytes, cell, hex, number, pretty, time } from "./format.js";
import { pair } from "./topics.js";

const HEX_BYTES_MAX = 64 * 1024;
const LETTERS_MAX = 500;

// An input for a key or value, in base64 if it is no text, and what of it is to be sent. What nobody touched is not, so that it stays as
// it is byte by byte, whatever the browser makes of its line ends.
function part(name, cell, input) {
  const encoded = cell !== null && cell.text === null;
  input.value = cell === null ? "" : cell.text ?? cell.base64;
  const before = input.value;
  const label = name[0].toUpperCase() + name.slice(1);
  return {
    field: field(encoded ? `${label}, base64` : label, input),
    changed: () => (input.value === before ? {} : { [encoded ? `${name}_base64` : name]: input.value }),
  };
}

// Headers as lines of name=value. Those that are no text, or have line ends or equals signs in their names, cannot be written so.
function headerLines(letter) {
  const plain = letter.headers.every((each) => each.value?.text != null && !/[\r\n]/.test(each.name + each.value.text) && !each.name.includes("="));
  const input = h("textarea", { rows: "3", disabled: !plain, placeholder: plain ? "name=value, one a line" : "They are not all text, and stay as they are." });
  input.value = plain ? letter.headers.map((each) => `${each.name}=${each.value.text}`).join("\n") : "";
  const before = input.value;
  const parsed = () => input.value.split("\n").filter(Boolean).map((line) => {
    const at = line.indexOf("=");
    if (at < 0) throw new Error(`Header ${line} has no value: write it as name=value.`);
    return { name: line.slice(0, at), value: line.slice(at + 1) };
  });
  return { field: field("Headers", input), changed: () => (input.value === before ? {} : { headers: parsed() }) };
}

function editor(topic, letter, submit) {
  const key = part("key", letter.key, h("input", { autocomplete: "off", placeholder: "none" }));
  const value = part("value", letter.value, h("textarea", { rows: "12", autofocus: true }));
  const headers = headerLines(letter);
  const none = h("input", { type: "checkbox", checked: letter.value === null });
  const changed = () => ({ ...key.changed(), ...headers.changed(), ...(none.checked ? { value: null } : { ...(letter.value === null ? { value: "" } : {}), ...value.changed() }) });
  return ask(`Edit and replay to ${topic}`, [key.field, value.field, headers.field, h("label", { class: "check" }, none, "No value (a tombstone)")], { action: "Replay", wide: true, submit: async () => submit(changed()) });
}

export async function deadLettersPage(context) {
  const topics = await get("/dead-letters");
  return {
    title: "Dead letters",
    content: [head("Dead letters"), table([
      ["topic", (each) => link(`/dead-letters/${segment(each.topic)}`, each.topic)],
      ["dead-letter topic", (each) => link(`/topics/${segment(each.dead_letter_topic)}`, each.dead_letter_topic)],
      ["records", (each) => number(each.letters), "num"],
    ], topics, { open: (each) => context.go(`/dead-letters/${segment(each.topic)}`), caption: "Topics with dead letters", empty: "No topic has dead letters." })],
  };
}

export async function deadLetterPage(context) {
  const name = context.names.topic;
  const letters = await get(topicPath(name, `/dead-letters${query({ limit: LETTERS_MAX })}`));
  const reasons = new Map();
  for (const each of letters) reasons.set(each.reason, (reasons.get(each.reason) ?? 0) + 1);
  const filter = filterInput(context.query.get("filter") ?? "", "all; or text of the record or the reason; or $.customer.id = 42");
  const outcome = h("div", { "aria-live": "polite" });
  const detail = h("div", { "aria-live": "polite" });
  const replay = (body) => post(topicPath(name, "/dead-letters/replay"), body);
  const guarded = (action) => async () => { try { await action(); } catch (error) { fill(outcome, h("div", { class: "error", role: "alert" }, error.message)); } };
  const dryRun = guarded(async () => {
    context.keep({ filter: filter.value });
    const { count } = await replay({ filter: filter.value, dry_run: true });
    fill(outcome, h("p", {}, `${number(count)} dead letters would be written to ${name} again. `),
      count ? button("Replay them", guarded(async () => { const done = await replay({ filter: filter.value }); toast(`${number(done.count)} dead letters replayed.`); await context.reload(); }), "primary") : null);
  });
  const replayOne = (letter) => guarded(async () => { await replay({ id: letter.id }); toast("The dead letter is replayed."); await context.reload(); });
  const edit = (letter) => editor(name, letter, async (record) => { await replay({ id: letter.id, record }); toast("The edited record is replayed."); await context.reload(); });
  const inspect = async (listed) => {
    let letter;
    try { letter = await get(topicPath(name, `/dead-letters/${segment(listed.id)}`)); } catch (error) { toast(error.message, "bad"); return; }
    fill(detail, h("section", { class: "panel", "aria-label": "One dead letter" },
    h("h2", {}, letter.reason || "No reason was given"),
    h("dl", {}, pair("id", h("span", { class: "mono" }, letter.id)), pair("from", letter.origin_offset === null ? "–" : link(`/topics/${segment(name)}/records?at=offset&partition=${letter.origin_partition}&offset=${letter.origin_offset}`, `partition ${letter.origin_partition}, offset ${letter.origin_offset}`)),
      pair("attempts", number(letter.attempts)), pair("first failed", time(letter.first_failed_ms)), pair("failed", time(letter.failed_ms)),
      pair("key", letter.key === null ? "none" : h("span", { class: "mono" }, cell(letter.key))), letter.headers.map((each) => pair(`header ${each.name}`, cell(each.value)))),
    h("pre", { tabindex: "0", "aria-label": "Value" }, letter.value === null ? "null" : shownText(letter.value.text === null ? hex(letter.value.base64, HEX_BYTES_MAX) : pretty(letter.value.text))),
      h("div", { class: "row" }, button("Replay", replayOne(letter), "primary"), button("Edit and replay", () => edit(letter)),
        letter.value === null ? null : button("Download value", () => save(`${name}-dead-letter-${letter.id}`, bytesOf(letter.value))), button("Close", () => fill(detail)))));
  };
  return {
    title: `Dead letters of ${name}`,
    content: [
      head(name, { crumbs: [["Dead letters", "/dead-letters"]], actions: [button("Purge", () => confirmName(`Delete the dead letters of ${name}`, name, "Purge", async () => { await remove(topicPath(name, "/dead-letters")); toast("Purged."); await context.go("/dead-letters"); }), "danger")] }),
      h("p", { class: "row" }, [...reasons].map(([reason, count]) => button(`${reason || "no reason"}: ${number(count)}`, () => { filter.value = reason; return dryRun(); }, "tag warn", { title: "Count those with this reason in all dead letters" }))),
      letters.length === LETTERS_MAX ? h("p", { class: "dim" }, `These are the oldest ${number(LETTERS_MAX)}; a replay takes all that match.`) : null,
      panel(h("div", { class: "row" }, field("Replay those that match", filter, "grow filter"), conditionButton(filter, dryRun), button("Dry run", dryRun)), outcome),
      detail,
      table([
        ["failed", (each) => moment(time(each.failed_ms)), "nowrap mono"],
        ["reason", (each) => each.reason, "reason"],
        ["attempts", (each) => number(each.attempts), "num wide"],
        ["key", (each) => each.key === null ? "–" : cell(each.key), "key mono wide"],
        ["value", (each) => each.value === null ? tag("tombstone") : cell(each.value), "cut mono"],
        ["size", (each) => bytes(each.value?.size ?? 0), "num wide"],
        ["", (each) => button("Replay", replayOne(each)), "wide"],
      ], letters, { open: inspect, caption: "Dead letters", empty: "Every dead letter was replayed." }),
    ],
  };
}
