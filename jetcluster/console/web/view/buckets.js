// Key-value: the list of buckets, and the page of one of them or of a key.
import { html } from "../vendor/ui.js";
import { ago, bytes, limit, nanoseconds } from "../format.js";
import { buckets } from "../kv.js";
import { Act } from "../part/act.js";
import { Stale, Unanswered, usePoll, Waiting } from "../part/poll.js";
import { figure, Table } from "../part/table.js";
import { Chip } from "../part/words.js";
import { route, to } from "../route.js";
import { whyNone } from "../session.js";
import { Bucket } from "./bucket.js";
import { COMMON, createBucket } from "./bucket_form.js";
import { Key } from "./key.js";

const LIVE_MS = 10_000;

export function Buckets() {
  const [, name, part, key] = route.value.path;
  if (name && part === "k" && key) return html`<${Key} key=${`${name} ${key}`} name=${name} of=${key} />`;
  return name ? html`<${Bucket} key=${name} name=${name} />` : html`<${List} />`;
}

function List() {
  const poll = usePoll(buckets, LIVE_MS);
  if (!poll.data) return html`<h1>Key-value</h1><${Waiting} poll=${poll} what="the buckets" />`;
  const columns = [
    { id: "name", title: "Bucket", value: (one) => one.name, show: (one) => html`<a href=${to("kv", one.name)}><b>${one.name}</b></a> ${one.mirror && html`<${Chip} title=${`mirrors ${one.mirror}`}>mirror<//>`}` },
    figure("keys", "Keys", "state.num_subjects, with keys that were deleted", (one) => one.state.num_subjects ?? 0),
    figure("values", "Revisions", "state.messages", (one) => one.state.messages),
    figure("size", "Size", "state.bytes", (one) => one.state.bytes, bytes),
    { id: "history", title: "History", end: true, hint: "max_msgs_per_subject", value: (one) => one.config.max_msgs_per_subject, show: (one) => limit(one.config.max_msgs_per_subject) },
    { id: "ttl", title: "Kept for", end: true, hint: "max_age", value: (one) => one.config.max_age, show: (one) => (one.config.max_age ? nanoseconds(one.config.max_age) : "ever") },
    figure("replicas", "Replicas", "num_replicas", (one) => one.config.num_replicas),
    { id: "storage", title: "Storage", value: (one) => one.config.storage },
    { id: "changed", title: "Last change", end: true, hint: "state.last_ts", value: (one) => one.state.last_ts ?? "", show: (one) => ago(one.state.last_ts) },
    { id: "description", title: "Description", value: (one) => one.config.description ?? "", show: (one) => html`<span class="clip" title=${one.config.description}>${one.config.description}</span>` },
  ];
  return html`<h1>Key-value</h1><${Stale} poll=${poll} />
    <${Unanswered} names=${poll.data.missing.filter((name) => name.startsWith("KV_"))} />
    <${Table} label="buckets" columns=${columns} rows=${poll.data} keyOf=${(one) => one.stream} sort="name" empty="There are no buckets.">
      <${Act} class="primary" why=${whyNone("$JS.API.STREAM.CREATE.*")} act=${create}>New bucket<//>
    <//>`;
}

const FIELDS = [
  { name: "max_msgs_per_subject", label: "Revisions of a key that are kept", kind: "number", hint: "1 to 64" },
  { name: "max_age", label: "Keys are kept for", kind: "duration", hint: "like 24h; empty: for ever" },
  ...COMMON,
  { name: "max_msg_size", label: "Bytes of a value at most", kind: "number", hint: "empty: no limit" },
  { name: "subject_delete_marker_ttl", label: "Markers of keys whose time is over stay for", kind: "duration", hint: "like 1h; allows a time to live per key" },
];

const create = () => createBucket({ prefix: "KV_", page: "kv", fields: FIELDS, first: { max_msgs_per_subject: 1 }, configOf });

/** The stream that the clients' libraries make for a bucket. */
function configOf(name, given) {
  const config = { subjects: [`$KV.${name}.>`], discard: "new", deny_delete: true, allow_rollup_hdrs: true, allow_direct: true, ...given };
  if (config.subject_delete_marker_ttl) config.allow_msg_ttl = true;
  return config;
}
