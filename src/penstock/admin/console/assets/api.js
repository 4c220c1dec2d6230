// The admin API. A refusal becomes an ApiError with the words of the broker.

import { segment } from "./dom.js";
import { asWritten } from "./format.js";

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the broker answered ${status}`);
    this.status = status;
    this.code = problem.code ?? "";
  }
}

export const session = { state: null, onLoggedOut: () => {} };

export async function api(method, path, body, reviver) {
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (session.state?.csrf_token) headers["x-csrf-token"] = session.state.csrf_token;
  let response;
  try {
    response = await fetch(`/api/v1${path}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new ApiError(0, { detail: "The broker cannot be reached." });
  }
  const text = await response.text();
  const content = text ? JSON.parse(text, reviver) : null;
  if (response.ok) return content;
  if (response.status === 401 && path !== "/session") session.onLoggedOut();
  throw new ApiError(response.status, content ?? {});
}

export const get = (path) => api("GET", path);
export const getRecords = (path) => api("GET", path, undefined, asWritten);
export const post = (path, body) => api("POST", path, body);
export const remove = (path) => api("DELETE", path);
export const topicPath = (topic, rest = "") => `/topics/${segment(topic)}${rest}`;

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return text ? `?${text}` : "";
}

export async function loadSession() {
  session.state = await get("/session");
  return session.state;
}
