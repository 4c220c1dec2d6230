// Plots as SVG: a line for a tile or a table, and a plot with axes that also says in words what it shows.

import { h } from "./dom.js";
import { clock, duration, number } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Where values are missing (null), the line is interrupted.
function lines(values, at, top, height, kind) {
  const parts = [];
  let points = [];
  values.forEach((value, index) => {
    if (value === null) { if (points.length) parts.push(points); points = []; } else points.push(`${at(index).toFixed(2)},${(height - (height - 2) * value / top - 1).toFixed(2)}`);
  });
  if (points.length) parts.push(points);
  return parts.map((each) => svg("polyline", { class: kind, points: (each.length > 1 ? each : [each[0], each[0]]).join(" ") }));
}

export function spark(values) {
  const step = 100 / Math.max(values.length - 1, 1);
  return svg("svg", { viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true", class: "sparkline" },
    ...lines(values, (index) => index * step, Math.max(...values, 1e-9), 26, "spark"));
}

// `show` turns a value into text. Several plots below one another have the same times.
export function plot(title, times, values, show = number) {
  const known = values.filter((value) => value !== null);
  const caption = (...children) => h("figcaption", {}, h("b", {}, title), " ", ...children);
  if (known.length < 2) return h("figure", { class: "plot" }, caption(h("span", { class: "dim" }, "appears once there are two samples: one is taken every ten seconds.")));
  const top = Math.max(...known) || 1;
  const span = Math.max(times.at(-1) - times[0], 1);
  const summary = `${show(known.at(-1))} now, at most ${show(Math.max(...known))} in the last ${duration(span / 1000)}`;
  return h("figure", { class: "plot" }, caption(h("span", { class: "dim" }, summary)),
    h("div", { class: "axes" },
      h("div", { class: "y", "aria-hidden": "true" }, h("span", {}, show(top)), h("span", {}, show(top / 2)), h("span", {}, "0")),
      svg("svg", { viewBox: "0 0 600 140", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${summary}` },
        ...[1, 70, 139].map((y) => svg("line", { class: "rule", x1: 0, x2: 600, y1: y, y2: y })),
        ...lines(values, (index) => 600 * (times[index] - times[0]) / span, top, 140, "line"))),
    h("div", { class: "x", "aria-hidden": "true" }, h("span", {}, clock(times[0])), h("span", {}, clock(times.at(-1)))));
}

// Rates between samples of a count that only grows; a restart of the broker counts as a standstill.
export function ratesOf(times, counts) {
  return counts.slice(1).map((count, at) => Math.max(0, count - counts[at]) / Math.max((times[at + 1] - times[at]) / 1000, 0.001));
}
