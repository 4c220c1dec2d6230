// Numbers, sizes, times and bytes as people read them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 2 });
const short = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export function rate(value) {
  if (value >= 1e6) return `${short.format(value / 1e6)} M/s`;
  if (value >= 1e4) return `${short.format(value / 1e3)} k/s`;
  return `${(value && value < 1 ? fine : short).format(value)}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at ? short.format(value) : whole.format(value)} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${short.format(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${short.format(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function time(ms) {
  if (!ms) return "–";
  const at = new Date(ms);
  const pad = (value, width = 2) => String(value).padStart(width, "0");
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

export const clock = (ms) => time(ms).split(" ")[1]?.slice(0, 8) ?? "–";

export function setting(name, value) {
  if (/^\d+$/.test(value) && name.endsWith("_bytes")) return bytes(Number(value));
  if (/^\d+$/.test(value) && name.endsWith("_ms")) return duration(Number(value) / 1000);
  return value;
}

// A key or value in one line.
export function cell(content) {
  if (content === null) return "null";
  return content.text ?? hex(content.base64, 64);
}

export function hex(base64, limit = Infinity) {
  const data = atob(base64);
  let text = "";
  for (let at = 0; at < Math.min(data.length, limit); at += 1) text += data.charCodeAt(at).toString(16).padStart(2, "0") + " ";
  return text.trimEnd() + (data.length > limit ? " …" : "");
}

export function isJson(text) {
  try { JSON.parse(text); return true; } catch { return false; }
}

// Numbers of records that JavaScript would round or write differently keep their digits, where the browser can do that.
export const asWritten = (_, value, context) =>
  (typeof value === "number" && JSON.rawJSON && context && String(value) !== context.source ? JSON.rawJSON(context.source) : value);

// JSON with line breaks. In a browser that cannot keep the digits of numbers it stays as it was written.
export function pretty(text) {
  try { return JSON.rawJSON ? JSON.stringify(JSON.parse(text, asWritten), null, 2) : text; } catch { return text; }
}

// The value at a quantile of a histogram, as far as its bounds tell.
export function quantile(histogram, q) {
  const total = histogram.counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let seen = 0;
  for (let at = 0; at < histogram.bounds_s.length; at += 1) {
    seen += histogram.counts[at];
    if (seen >= q * total) return histogram.bounds_s[at];
  }
  return histogram.bounds_s.at(-1);
}
