// Objects: the list of buckets.
import { html } from "../vendor/ui.js";
import { ago, bytes, nanoseconds } from "../format.js";
import { objectBuckets } from "../objects.js";
import { Act } from "../part/act.js";
import { Stale, Unanswered, usePoll, Waiting } from "../part/poll.js";
import { figure, Table } from "../part/table.js";
import { Chip } from "../part/words.js";
import { route, to } from "../route.js";
import { whyNone } from "../session.js";
import { COMMON, createBucket } from "./bucket_form.js";
import { ObjectBucket } from "./object_bucket.js";

const LIVE_MS = 10_000;

export function Objects() {
  const [, name] = route.value.path;
  return name ? html`<${ObjectBucket} key=${name} name=${name} />` : html`<${List} />`;
}

/** What is seen of the layouts of a bucket: a chip for the service's. */
export function Layouts({ bucket }) {
  return html`${bucket.service && !bucket.mirror && html`<${Chip} title="The server's object service answers for it ($OBJ).">service<//>`}
    ${bucket.mirror && html`<${Chip} title=${`mirrors ${bucket.mirror}`}>mirror<//>`}${bucket.config.sealed && html`<${Chip} title="config.sealed: nothing can be changed any more">sealed<//>`}`;
}

function List() {
  const poll = usePoll(objectBuckets, LIVE_MS);
  if (!poll.data) return html`<h1>Objects</h1><${Waiting} poll=${poll} what="the buckets" />`;
  const columns = [
    { id: "name", title: "Bucket", value: (one) => one.name, show: (one) => html`<a href=${to("objects", one.name)}><b>${one.name}</b></a> <${Layouts} bucket=${one} />` },
    figure("size", "Size", "state.bytes", (one) => one.state.bytes, bytes),
    figure("messages", "Chunks and metadata", "state.messages", (one) => one.state.messages),
    { id: "ttl", title: "Kept for", end: true, hint: "max_age", value: (one) => one.config.max_age, show: (one) => (one.config.max_age ? nanoseconds(one.config.max_age) : "ever") },
    figure("replicas", "Replicas", "num_replicas", (one) => one.config.num_replicas),
    { id: "storage", title: "Storage", value: (one) => one.config.storage },
    { id: "changed", title: "Last change", end: true, hint: "state.last_ts", value: (one) => one.state.last_ts ?? "", show: (one) => ago(one.state.last_ts) },
    { id: "description", title: "Description", value: (one) => one.config.description ?? "", show: (one) => html`<span class="clip" title=${one.config.description}>${one.config.description}</span>` },
  ];
  return html`<h1>Objects</h1><${Stale} poll=${poll} />
    <${Unanswered} names=${poll.data.missing.filter((name) => name.startsWith("OBJ_"))} />
    <${Table} label="buckets" columns=${columns} rows=${poll.data} keyOf=${(one) => one.stream} sort="name" empty="There are no buckets.">
      <${Act} class="primary" why=${whyNone("$JS.API.STREAM.CREATE.*")} act=${create}>New bucket<//>
    <//>`;
}

const FIELDS = [{ name: "max_age", label: "Objects are kept for", kind: "duration", hint: "like 24h; empty: for ever" }, ...COMMON];

const create = () =>
  createBucket({
    prefix: "OBJ_",
    page: "objects",
    fields: FIELDS,
    first: {},
    configOf: (name, given) => ({ subjects: [`$O.${name}.C.>`, `$O.${name}.M.>`], discard: "new", allow_rollup_hdrs: true, allow_direct: true, ...given }),
  });
