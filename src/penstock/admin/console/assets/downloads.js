// Files made in the browser: records as JSON Lines, as `penstock consume --json` prints and `penstock produce --json` reads them, or one value.

import { getRecords, topicPath } from "./api.js";
import { h } from "./dom.js";

const SHOWN_CHARS_MAX = 256 * 1024;

export function save(name, content, type = "application/octet-stream") {
  const address = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: address, download: name.replaceAll(/[^\w.-]/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

export function bytesOf(cell) {
  if (cell.text !== null) return new TextEncoder().encode(cell.text);
  return Uint8Array.from(atob(cell.base64), (character) => character.charCodeAt(0));
}

export const base64Of = (text) => btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));

const member = (name, cell) => (cell?.base64 ? { [`${name}_base64`]: cell.base64 } : { [name]: cell?.text ?? null });

function line(topic, record) {
  return JSON.stringify({
    topic, partition: record.partition, offset: record.offset, timestamp: record.timestamp_ms, ...member("key", record.key),
    headers: record.headers.map((each) => ({ key: each.name, ...member("value", each.value) })), ...member("value", record.value),
  });
}

// What a page has cut is asked for again, record by record.
export async function saveRecords(topic, records) {
  const lines = [];
  for (const each of records) {
    const cut = [each.key, each.value, ...each.headers.map((header) => header.value)].some((cell) => cell?.truncated);
    lines.push(line(topic, cut ? await getRecords(topicPath(topic, `/partitions/${each.partition}/records/${each.offset}`)) : each));
  }
  save(`${topic}.jsonl`, `${lines.join("\n")}\n`, "application/x-ndjson");
}

// A large value would keep the browser busy for long: its beginning is shown, and all of it can be downloaded.
export function shownText(text) {
  return text.length > SHOWN_CHARS_MAX ? [text.slice(0, SHOWN_CHARS_MAX), h("b", {}, "\n… the rest is left out here: download the value to have all of it.")] : text;
}
