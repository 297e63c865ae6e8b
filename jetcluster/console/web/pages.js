// The pages of the console, in the order of the navigation. `count`: what stands beside the name there.
import { Buckets } from "./view/buckets.js";
import { Cluster } from "./view/cluster.js";
import { Consumers } from "./view/consumers.js";
import { Findings, FindingsCount } from "./view/findings.js";
import { Objects } from "./view/objects.js";
import { Streams } from "./view/streams.js";

export const PAGES = [
  { path: "cluster", title: "Cluster", view: Cluster, shows: (session) => session.system !== "no" },
  { path: "findings", title: "Findings", view: Findings, count: FindingsCount, shows: (session) => session.system !== "no" },
  { path: "streams", title: "Streams", view: Streams, shows: (session) => session.jetstream !== "no" },
  { path: "consumers", title: "Consumers", view: Consumers, shows: (session) => session.jetstream !== "no" },
  { path: "kv", title: "Key-value", view: Buckets, shows: (session) => session.jetstream !== "no" },
  { path: "objects", title: "Objects", view: Objects, shows: (session) => session.jetstream !== "no" },
];

export function shownPages(session) {
  return PAGES.filter((page) => page.shows(session));
}
