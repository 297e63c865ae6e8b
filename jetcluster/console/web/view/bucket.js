// One bucket: its keys, its changes as they come, and its configuration.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { bytes, exact, limit, nanoseconds, time } from "../format.js";
import { bucket as load, mayWatch, watch } from "../kv.js";
import { Act } from "../part/act.js";
import { confirm } from "../part/dialog.js";
import { preview } from "../part/payload.js";
import { Notice, Stale, usePoll, Waiting } from "../part/poll.js";
import { Table } from "../part/table.js";
import { Chip, Figure, Figures, Tabs, Terms } from "../part/words.js";
import { go, route, to } from "../route.js";
import { js, whyNone, whyNot } from "../session.js";
import { groupOf } from "./streams.js";
import { Replicas } from "./cluster.js";
import { Keys } from "./bucket_keys.js";
import { putKey } from "./key_edit.js";

const LIVE_MS = 4000;
const MOST_CHANGES = 500;
const DRAWN_EVERY_MS = 200;
const TABS = [["keys", "Keys"], ["live", "Changes, live"], ["configuration", "Configuration"]];

export function Bucket({ name }) {
  const at = route.value.path[2] ?? "keys";
  const poll = usePoll(() => load(name), LIVE_MS, [name]);
  if (!poll.data) return html`<h1>${name}</h1><${Waiting} poll=${poll} what="the bucket" />`;
  const bucket = poll.data;
  return html`<div class="heading"><h1>${name}</h1> ${bucket.mirror && html`<${Chip} title="config.mirror">mirror of ${bucket.mirror}<//>`}<${Actions} bucket=${bucket} again=${poll.again} /></div>
    ${bucket.config.description && html`<p class="faint">${bucket.config.description}</p>`}
    <${Stale} poll=${poll} />
    <${Tabs} label="Parts of the bucket" tabs=${TABS} at=${at} href=${(id) => to("kv", name, id)} />
    ${at === "keys" && html`<${Keys} bucket=${bucket} />`}
    ${at === "live" && html`<${Live} bucket=${bucket} />`}
    ${at === "configuration" && html`<${Configuration} bucket=${bucket} />`}`;
}

function Actions({ bucket, again }) {
  const subject = `$JS.API.STREAM.DELETE.${bucket.stream}`;
  return html`<div class="actions">
    <${Act} why=${whyNoWrite(bucket, `${bucket.prefix}>`)} act=${() => putKey(bucket, again)}>New key<//>
    <${Act} class="danger" why=${whyNot(subject)} act=${() => remove(bucket)}>Delete the bucket<//></div>`;
}

/** Why a key cannot be written by this user, or "". */
export function whyNoWrite(bucket, subject) {
  if (bucket.mirror) return `A mirror takes its values from ${bucket.mirror}.`;
  if (bucket.config.sealed) return "The bucket is sealed.";
  return whyNone(subject);
}

function remove(bucket) {
  confirm({
    title: `Delete the bucket ${bucket.name}`,
    explain: html`<p>All its keys and their history are lost: ${exact(bucket.state.num_subjects ?? 0)} keys, ${bytes(bucket.state.bytes)}.</p>`,
    name: bucket.name,
    verb: "Delete the bucket",
    act: async () => {
      await js(`STREAM.DELETE.${bucket.stream}`);
      go("kv");
    },
    done: `The bucket ${bucket.name} is deleted.`,
  });
}

function Live({ bucket }) {
  const [rows, setRows] = useState([]);
  const [state, set] = useState({ on: true, error: null, count: 0 });
  const kept = useRef([]);
  const allowed = mayWatch(bucket) && !bucket.mirror;
  useEffect(() => {
    if (!allowed || !state.on) return () => {};
    let stop = () => {};
    let over = false;
    let timer = 0;
    let count = state.count;
    const draw = () => {
      timer = 0;
      setRows(kept.current);
      set((old) => ({ ...old, count }));
    };
    const told = (one) => {
      // Without the value itself, which may be a megabyte.
      const change = { ...one, value: preview(one.value), size: one.value.length };
      kept.current = [change, ...kept.current.slice(0, MOST_CHANGES - 1)];
      count += 1;
      // A busy bucket changes more often than anybody can read.
      if (!timer && !over) timer = setTimeout(draw, DRAWN_EVERY_MS);
    };
    const ended = (error) => !over && set((old) => ({ ...old, on: false, error: error ?? new Error("The bucket's consumer has ended.") }));
    watch(bucket, told, ended).then((end) => (over ? end() : (stop = end)), ended);
    return () => {
      over = true;
      clearTimeout(timer);
      stop();
    };
  }, [bucket.stream, state.on, allowed]);
  if (bucket.mirror) return html`<p class="notice">A mirror changes as its origin does: <a href=${to("kv", bucket.mirror.slice("KV_".length), "live")}>${bucket.mirror}</a>.</p>`;
  if (!allowed) return html`<p class="notice">To watch, a user must be allowed to create a consumer: publish to <code>$JS.API.CONSUMER.CREATE.${bucket.stream}.></code></p>`;
  const columns = [
    { id: "revision", title: "Revision", end: true, value: (one) => one.revision, show: (one) => exact(one.revision) },
    { id: "time", title: "Time", value: (one) => one.time, show: (one) => time(one.time) },
    { id: "key", title: "Key", value: (one) => one.key, show: (one) => html`<a class="mono" href=${to("kv", bucket.name, "k", one.key)}>${one.key}</a>` },
    { id: "what", title: "What", value: (one) => one.operation, show: (one) => html`<${Operation} of=${one.operation} />` },
    { id: "size", title: "Size", end: true, value: (one) => one.size, show: (one) => bytes(one.size) },
    { id: "value", title: "Value", value: (one) => one.value, show: (one) => html`<span class="mono clip wide">${one.value}</span>` },
  ];
  return html`<${Notice} error=${state.error} />
    <${Table} label="changes" columns=${columns} rows=${rows} keyOf=${(one) => one.revision} sort="-revision" empty=${state.on ? "Nothing has changed since this page was opened." : "Stopped."}>
      <button type="button" aria-pressed=${state.on} onClick=${() => set((old) => ({ ...old, on: !old.on, error: null }))}>${state.on ? "Live" : "Stopped"}</button>
      ${state.count > MOST_CHANGES && html`<span class="faint">the last ${MOST_CHANGES} of ${exact(state.count)}</span>`}
    <//>`;
}

const OPERATIONS = { PUT: ["value", "good"], DEL: ["deleted", "warn"], PURGE: ["purged", "bad"] };

export function Operation({ of }) {
  const [word, kind] = OPERATIONS[of] ?? [of, ""];
  return html`<${Chip} kind=${kind} title=${`KV-Operation ${of}`}>${word}<//>`;
}

function Configuration({ bucket }) {
  const { config, state, info } = bucket;
  return html`<${Figures}>
      <${Figure} name="Keys" value=${exact(state.num_subjects ?? 0)} metric="state.num_subjects, with deleted ones" />
      <${Figure} name="Revisions" value=${exact(state.messages)} metric="state.messages" />
      <${Figure} name="Size" value=${bytes(state.bytes)} metric="state.bytes" />
      <${Figure} name="Consumers" value=${exact(state.consumer_count)} metric="state.consumer_count: who watches" />
    <//>
    <section class="panel"><${Terms} rows=${[
      ["Stream", html`<a href=${to("streams", bucket.stream)}>${bucket.stream}</a>`],
      ["Leader and replicas", html`<${Replicas} group=${groupOf(info)} />`],
      ["Revisions of a key", limit(config.max_msgs_per_subject)],
      ["Keys are kept for", config.max_age ? nanoseconds(config.max_age) : "ever"],
      ["Storage", config.storage],
      ["Bytes at most", limit(config.max_bytes, bytes)],
      ["Bytes of a value at most", limit(config.max_msg_size, bytes)],
      ["Time to live per key", config.allow_msg_ttl ? `allowed, markers stay for ${nanoseconds(config.subject_delete_marker_ttl)}` : "not allowed"],
      ["Compression", config.compression],
      ["Created", time(info.created)],
    ]} /></section>`;
}
