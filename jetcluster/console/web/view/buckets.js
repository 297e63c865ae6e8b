// Key-value: the list of buckets, and the page of one of them or of a key.
import { html, useState } from "../vendor/ui.js";
import { ago, bytes, exact, limit, nanoseconds } from "../format.js";
import { buckets } from "../kv.js";
import { open, tell } from "../part/dialog.js";
import { Field, hasWrong } from "../part/field.js";
import { Notice, usePoll, Waiting } from "../part/poll.js";
import { Table } from "../part/table.js";
import { Chip } from "../part/words.js";
import { go, route, to } from "../route.js";
import { js, may } from "../session.js";
import { Bucket } from "./bucket.js";
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
  const allowed = may("$JS.API.STREAM.CREATE.KV_x");
  const columns = [
    { id: "name", title: "Bucket", value: (one) => one.name, show: (one) => html`<a href=${to("kv", one.name)}><b>${one.name}</b></a> ${one.mirror && html`<${Chip} title=${`mirrors ${one.mirror}`}>mirror<//>`}` },
    { id: "keys", title: "Keys", end: true, hint: "state.num_subjects, with keys that were deleted", value: (one) => one.state.num_subjects ?? 0, show: (one) => exact(one.state.num_subjects ?? 0) },
    { id: "values", title: "Revisions", end: true, hint: "state.messages", value: (one) => one.state.messages, show: (one) => exact(one.state.messages) },
    { id: "size", title: "Size", end: true, hint: "state.bytes", value: (one) => one.state.bytes, show: (one) => bytes(one.state.bytes) },
    { id: "history", title: "History", end: true, hint: "max_msgs_per_subject", value: (one) => one.config.max_msgs_per_subject, show: (one) => limit(one.config.max_msgs_per_subject) },
    { id: "ttl", title: "Kept for", end: true, hint: "max_age", value: (one) => one.config.max_age, show: (one) => (one.config.max_age ? nanoseconds(one.config.max_age) : "ever") },
    { id: "replicas", title: "Replicas", end: true, hint: "num_replicas", value: (one) => one.config.num_replicas, show: (one) => exact(one.config.num_replicas) },
    { id: "storage", title: "Storage", value: (one) => one.config.storage },
    { id: "changed", title: "Last change", end: true, hint: "state.last_ts", value: (one) => one.state.last_ts ?? "", show: (one) => ago(one.state.last_ts) },
    { id: "description", title: "Description", value: (one) => one.config.description ?? "", show: (one) => html`<span class="clip" title=${one.config.description}>${one.config.description}</span>` },
  ];
  return html`<h1>Key-value</h1><${Notice} error=${poll.error} />
    <${Table} label="buckets" columns=${columns} rows=${poll.data} keyOf=${(one) => one.stream} sort="name" empty="There are no buckets.">
      <button type="button" disabled=${!allowed} title=${allowed ? "" : "This user may not publish to $JS.API.STREAM.CREATE"} onClick=${createBucket}>Create a bucket</button>
    <//>`;
}

const FIELDS = [
  { name: "max_msgs_per_subject", label: "Revisions of a key that are kept", kind: "number", hint: "1 to 64" },
  { name: "max_age", label: "Keys are kept for", kind: "duration", hint: "like 24h; empty: for ever" },
  { name: "num_replicas", label: "Replicas", kind: "number", hint: "1 to 5" },
  { name: "storage", label: "Storage", kind: ["file", "memory"] },
  { name: "max_bytes", label: "Bytes at most", kind: "number", hint: "empty: no limit" },
  { name: "max_msg_size", label: "Bytes of a value at most", kind: "number", hint: "empty: no limit" },
  { name: "subject_delete_marker_ttl", label: "Markers of keys whose time is over stay for", kind: "duration", hint: "like 1h; allows a time to live per key" },
  { name: "description", label: "Description", kind: "text" },
];
const ABOUT = [["marker", "subject_delete_marker_ttl"], ["replica", "num_replicas"], ["messages per subject", "max_msgs_per_subject"], ["max age", "max_age"], ["storage", "max_bytes"], ["max bytes", "max_bytes"], ["stream name", "name"], ["description", "description"]];

function createBucket() {
  open("New bucket", (shut) => html`<${Create} shut=${shut} />`);
}

function Create({ shut }) {
  const [draft, setDraft] = useState({ name: "", max_msgs_per_subject: 1, num_replicas: 3, storage: "file" });
  const [state, set] = useState({ busy: false, error: null, about: "" });
  const change = (name, value) => setDraft((old) => ({ ...old, [name]: value }));
  const submit = async (event) => {
    event.preventDefault();
    set({ busy: true, error: null, about: "" });
    try {
      const { name } = draft;
      if (!/^[-\w]+$/.test(name)) throw new Error("A bucket has a name of letters, digits, - and _; as a stream name");
      await js(`STREAM.CREATE.KV_${name}`, configOf(draft), 15_000);
      shut();
      tell(`The bucket ${name} is created.`);
      go("kv", name);
    } catch (error) {
      set({ busy: false, error, about: ABOUT.find(([part]) => error.message.toLowerCase().includes(part))?.[1] ?? "" });
    }
  };
  const errorOf = (name) => (state.error && state.about === name ? state.error.message : "");
  return html`<form onSubmit=${submit}>
    <${Field} field=${{ name: "name", label: "Name", kind: "text", hint: "letters, digits, - and _" }} value=${draft.name} change=${change} error=${errorOf("name")} />
    <div class="fields">${FIELDS.map((field) => html`<${Field} key=${field.name} field=${field} value=${draft[field.name]} change=${change} error=${errorOf(field.name)} />`)}</div>
    <${Notice} error=${state.about ? null : state.error} />
    <div class="buttons"><button type="button" onClick=${shut}>Cancel</button><button class="primary" disabled=${state.busy || !draft.name || hasWrong(draft)}>Create</button></div>
  </form>`;
}

/** The stream that the clients' libraries make for a bucket. */
function configOf({ name, ...given }) {
  const config = { name: `KV_${name}`, subjects: [`$KV.${name}.>`], retention: "limits", discard: "new", deny_delete: true, allow_rollup_hdrs: true, allow_direct: true };
  for (const [field, value] of Object.entries(given)) if (value !== undefined) config[field] = value;
  if (config.subject_delete_marker_ttl) config.allow_msg_ttl = true;
  return config;
}
