// The page as a link: `#/streams/ORDERS/messages?seq=5` is a path and its query, and each part of a path is encoded.
import { signal } from "./vendor/ui.js";

export const route = signal(parse(location.hash));

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query ?? "") };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a percent sign that somebody typed
  }
}

/** The address of a page: `to("streams", name)`, `to("streams", name, { tab: "messages" })`. */
export function to(...parts) {
  const query = typeof parts.at(-1) === "object" ? new URLSearchParams(parts.pop()).toString() : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

export function go(...parts) {
  location.hash = to(...parts);
}

/** Changes fields of the query without an entry in the history; "" removes one. */
export function refine(fields) {
  const { path, query } = route.value;
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(fields)) value === "" ? next.delete(name) : next.set(name, value);
  history.replaceState(null, "", to(...path, Object.fromEntries(next)));
  route.value = { path, query: next };
}
