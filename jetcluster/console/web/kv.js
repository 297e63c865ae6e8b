// Key-value buckets as every client keeps them: a stream KV_<bucket>, a subject per key, a message per revision.
import { Kvm, headers as newHeaders } from "./vendor/nats.js";
import { each, readLast } from "./messages.js";
import { isKey, keySubject, token } from "./names.js";
import { pause } from "./part/slices.js";
import { ApiError, js, jsAll, may, raw, session } from "./session.js";

const PREFIX = "KV_";
const WRONG_LAST = new Set([10071, 10164]);
/** Errors of an expected last sequence that is not the last. */
const MOST_REVISIONS = 64;
const MOST_KEYS = 1_000_000;
/** More would not fit into a tab; the subjects of the stream, filtered, show the others. */
const READ_MS = 30_000;

/** Somebody was faster: the key is not at the revision that was expected any more. */
export class Conflict extends Error {
  constructor(key) {
    super(`${key} has been changed meanwhile`);
  }
}

/** { name, stream, prefix, direct, mirror, config, state, info } of the stream of a bucket. */
function bucketOf(info) {
  const { config, state } = info;
  const origin = config.mirror?.name.startsWith(PREFIX) ? config.mirror.name : config.name;
  return {
    name: config.name.slice(PREFIX.length),
    stream: config.name,
    prefix: `$KV.${origin.slice(PREFIX.length)}.`,
    direct: Boolean(config.allow_direct) && may(`$JS.API.DIRECT.GET.${config.name}`),
    mirror: config.mirror?.name ?? "",
    config,
    state,
    info,
  };
}

export async function buckets() {
  return jsAll("STREAM.LIST", "streams", { pick: (one) => (one.config.name.startsWith(PREFIX) ? bucketOf(one) : null) });
}

export async function bucket(name) {
  return bucketOf(await js(`STREAM.INFO.${PREFIX}${token(name, "bucket")}`));
}

/**
 * The keys, deleted ones with them, sorted: { keys: [key], kept(key), left }: `kept` is how many revisions, `left` how many keys
 * there are beyond the first million. `seen(got, total)` after a page.
 */
export async function keysOf({ stream, prefix }, seen = () => {}) {
  const pages = [];
  let subjects = [];
  let total = 0;
  for (;;) {
    const page = await js(`STREAM.INFO.${stream}`, { subjects_filter: `${prefix}>`, offset: subjects.length }, READ_MS);
    const counts = page.state.subjects ?? {};
    const found = Object.keys(counts);
    pages.push(counts);
    total = page.total ?? 0;
    subjects = subjects.concat(found);
    seen(subjects.length, total);
    await pause();
    if (!found.length || subjects.length >= Math.min(total, MOST_KEYS)) break;
  }
  subjects.sort();
  await pause();
  const kept = (key) => pages.find((counts) => prefix + key in counts)?.[prefix + key];
  return { keys: subjects.map((subject) => subject.slice(prefix.length)), kept, left: Math.max(0, total - subjects.length) };
}

/** What a message of a bucket means: { key, revision, time, operation, value }. */
function entry(bucket, message) {
  const field = (name) => message.headers.find(([one]) => one === name)?.[1];
  return {
    key: message.subject.slice(bucket.prefix.length),
    revision: message.seq,
    time: message.time,
    operation: field("KV-Operation") ?? (field("Nats-Marker-Reason") ? "PURGE" : "PUT"),
    value: message.data,
    headers: message.headers,
  };
}

/** The last entries of some keys. Those beyond `bytes` together are left out. */
export async function entriesOf(bucket, keys, bytes = 0) {
  const found = await readLast(bucket.stream, keys.filter(isKey).map((key) => bucket.prefix + key), bytes, bucket.direct);
  return found.map((message) => entry(bucket, message));
}

/** The revisions of a key that are kept, the newest first. */
export async function historyOf(bucket, key) {
  const found = [];
  const wanted = { subject: keySubject(bucket.prefix, key), batch: MOST_REVISIONS, most: MOST_REVISIONS };
  for await (const message of each(bucket.stream, wanted, bucket.direct)) found.push(entry(bucket, message));
  return found.reverse();
}

/** What the leader has of a key, which nobody has newer; null when it never had a value. */
export async function current(bucket, key) {
  const [found] = await readLast(bucket.stream, [keySubject(bucket.prefix, key)], 0, false);
  return found ? entry(bucket, found) : null;
}

/**
 * Stores a value, or with `operation` "DEL" or "PURGE" takes it away, if the key still is at revision `expected` (0: it has
 * none). Returns the new revision. Throws Conflict and ApiError.
 */
export async function write(bucket, key, value, { expected, operation = "PUT", ttl = "" }) {
  if (!Number.isSafeInteger(expected)) throw new Error(`revision ${expected} is beyond 2^53: it cannot be told exactly`);
  const fields = newHeaders();
  fields.set("Nats-Expected-Last-Subject-Sequence", String(expected));
  if (operation !== "PUT") fields.set("KV-Operation", operation);
  if (operation === "PURGE") fields.set("Nats-Rollup", "sub");
  if (ttl) fields.set("Nats-TTL", ttl);
  const ack = (await raw(keySubject(bucket.prefix, key), value, fields)).json();
  if (WRONG_LAST.has(ack.error?.err_code)) throw new Conflict(key);
  if (ack.error) throw new ApiError(ack.error);
  return ack.seq;
}

/** Stores a key that has no value: one that was deleted may come back. */
export async function create(bucket, key, value, { ttl = "" } = {}) {
  const last = await current(bucket, key);
  if (last && last.operation === "PUT") throw new Conflict(key);
  return write(bucket, key, value, { expected: last?.revision ?? 0, ttl });
}

/** Tells each change from now on to `told(entry)`; returns a function that ends it. */
export async function watch({ name, direct, config }, told, ended) {
  const store = await new Kvm(session.value.nc).open(name, { allow_direct: direct, streamName: config.name });
  const changes = await store.watch({ include: "updates" });
  (async () => {
    for await (const one of changes) told({ key: one.key, revision: one.revision, time: one.created.toISOString(), operation: one.operation, value: one.value });
    ended();
  })().catch(ended);
  return () => changes.stop();
}

export const mayWatch = ({ stream }) => may(`$JS.API.CONSUMER.CREATE.${stream}.x.y`);
