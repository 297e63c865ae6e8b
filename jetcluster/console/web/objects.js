// Object buckets: a stream OBJ_<bucket> with the chunks of each object and its metadata, of the stock clients' layout
// (`$O.`), of the server's object service (`$OBJ.`), or both. Read by Direct Get, so that who may only read can download.
// The clients' library does it only where the browser has `crypto.subtle`, which it has not over plain HTTP.
import { headers as newHeaders, nuid, sha256 } from "./vendor/nats.js";
import { now } from "./clock.js";
import { each, readLast } from "./messages.js";
import { isToken, token } from "./names.js";
import { pacer } from "./part/slices.js";
import { ApiError, js, jsAll, may, raw, text, whyNot } from "./session.js";

const PREFIX = "OBJ_";
const DIGEST = "sha-256=";
const CHUNK_BYTES = 128 * 1024;
/** Of the clients' libraries. */
const IN_FLIGHT = 8;
const ACK_MS = 30_000;
const LIST_BATCH = 500;
const READ_BATCH = 8;
const encoder = new TextEncoder();

/** { name, stream, stock, service, direct, config, state, info } of the stream of a bucket. */
function bucketOf(info) {
  const { config, state } = info;
  const name = config.name.slice(PREFIX.length);
  const has = (prefix) => (config.subjects ?? []).some((one) => one.startsWith(prefix)) || Boolean(config.mirror);
  const direct = Boolean(config.allow_direct) && may(`$JS.API.DIRECT.GET.${config.name}`);
  return { name, stream: config.name, stock: has("$O."), service: has("$OBJ."), mirror: config.mirror?.name ?? "", direct, config, state, info };
}

export async function objectBuckets() {
  return jsAll("STREAM.LIST", "streams", { pick: (one) => (one.config.name.startsWith(PREFIX) ? bucketOf(one) : null) });
}

export async function objectBucket(name) {
  return bucketOf(await js(`STREAM.INFO.${PREFIX}${token(name, "bucket")}`));
}

/** The objects, as `objectOf` makes them, without deleted ones; `shared`: another one names the same chunks. */
export async function objectsOf(bucket) {
  const found = new Map();
  const pause = pacer();
  const layouts = [["stock", `$O.${bucket.name}.M.>`], ["service", `$OBJ.${bucket.name}.info.>`]].filter(([layout]) => bucket[layout]);
  for (const [layout, subject] of layouts) {
    for await (const message of each(bucket.stream, { subject, batch: LIST_BATCH }, bucket.direct)) {
      await pause();
      const object = objectOf(message, layout);
      // The newer one of a name counts, whichever layout it has.
      if (object && (found.get(object.name)?.seq ?? 0) < object.seq) found.set(object.name, object);
    }
  }
  const objects = [...found.values()].filter((one) => !one.deleted);
  const of = new Map();
  for (const one of objects) of.set(one.id, (of.get(one.id) ?? 0) + 1);
  return objects.map((one) => ({ ...one, shared: of.get(one.id) > 1 }));
}

/** An object as its metadata describe it, which anybody may have published: each field is of its type, or null for none at all. */
function objectOf(message, layout) {
  let meta;
  try {
    meta = JSON.parse(text(message.data));
  } catch {
    return null; // not an object: somebody published to the bucket's subjects
  }
  if (typeof meta?.name !== "string") return null;
  const word = (value) => (typeof value === "string" ? value : "");
  const number = (value) => (Number.isFinite(value) && value >= 0 ? value : 0);
  const link = meta.options?.link;
  return {
    name: meta.name,
    size: number(meta.size),
    chunks: number(meta.chunks),
    digest: word(meta.digest),
    description: word(meta.description),
    deleted: meta.deleted === true,
    id: word(meta.nuid ?? meta.nonce),
    layout,
    link: link ? { bucket: word(link.bucket), name: word(link.name) } : null,
    time: message.time,
    seq: message.seq,
  };
}

/** The subject of an object's chunks. Throws for an id that would be more than one token, and so name other objects' chunks too. */
function chunksSubject(bucket, object) {
  const id = token(object.id, `chunks of ${object.name}`);
  return object.layout === "stock" ? `$O.${bucket.name}.C.${id}` : `$OBJ.${bucket.name}.chunks.${id}`;
}

/**
 * Fetches an object as a Blob. `seen(bytes)` is told how far it is; `stopped()` ends it. Throws when chunks are missing, or
 * when its SHA-256 is not what the metadata says.
 */
export async function fetchObject(bucket, object, seen = () => {}, stopped = () => false) {
  if (object.link) throw new Error(`${object.name} is a link to ${object.link.bucket}/${object.link.name}`);
  const subject = chunksSubject(bucket, object);
  const parts = [];
  const sum = sha256.create();
  const pause = pacer();
  let size = 0;
  if (object.size) {
    for await (const { data } of each(bucket.stream, { subject, batch: READ_BATCH }, bucket.direct)) {
      if (stopped()) throw new Error("stopped");
      parts.push(data);
      sum.update(data);
      size += data.length;
      seen(size);
      await pause();
    }
  }
  if (size !== object.size) throw new Error(`${object.name}: ${size} of ${object.size} bytes are there; it has been replaced meanwhile, or it is damaged`);
  const digest = DIGEST + base64url(new Uint8Array(sum.arrayBuffer()));
  if (object.digest && stripped(digest) !== stripped(object.digest)) throw new Error(`${object.name} is damaged: its SHA-256 is ${digest}, not ${object.digest}`);
  // Without a type the browser guesses one, and adds its ending to the name.
  return new Blob(parts, { type: "application/octet-stream" });
}

/**
 * Stores a file as an object of its name, in place of one that is there. `seen(bytes)`: how much is stored; `stopped()` ends
 * it. What was stored of an upload that fails is removed. `shared`: the chunks of the old one are another's too, and stay.
 * Throws ApiError.
 */
export async function storeObject(bucket, { name, description = "", file, shared = false }, seen = () => {}, stopped = () => false) {
  const upload = bucket.stock ? await stockUpload(bucket, name, description, shared) : await serviceUpload(bucket, name, description, file);
  const sum = sha256.create();
  const pause = pacer();
  const flying = [];
  let stored = 0;
  let chunks = 0;
  let last = 0;
  const landed = async () => {
    const { ack, size } = await flying.shift();
    const { seq } = await ack;
    // Chunks are read in the order of the stream.
    if (seq !== undefined && seq <= last) throw new Error("the chunks were stored in another order than sent");
    last = seq ?? last;
    stored += size;
    seen(stored);
  };
  try {
    for (let at = 0; at < file.size; at += CHUNK_BYTES) {
      if (stopped()) throw new Error("stopped");
      const chunk = new Uint8Array(await file.slice(at, at + CHUNK_BYTES).arrayBuffer());
      sum.update(chunk);
      const ack = sent(upload.subject, chunk);
      ack.catch(() => {}); // is thrown when its turn comes
      flying.push({ ack, size: chunk.length });
      chunks += 1;
      await pause();
      if (flying.length >= IN_FLIGHT) await landed();
    }
    while (flying.length) await landed();
    return await upload.end({ size: file.size, chunks, digest: DIGEST + base64url(new Uint8Array(sum.arrayBuffer())) });
  } catch (error) {
    await Promise.allSettled(flying.map((one) => one.ack));
    await js(`STREAM.PURGE.${bucket.stream}`, { filter: upload.subject }).catch(() => {});
    throw error;
  }
}

async function stockUpload(bucket, name, description, shared) {
  const id = nuid.next();
  // The leader knows best whose chunks are replaced.
  const [known] = await readLast(bucket.stream, [metaSubject(bucket, name)], 0, !may(`$JS.API.STREAM.MSG.GET.${bucket.stream}`));
  const old = known && objectOf(known, "stock");
  const chunks = old && !old.link && !old.deleted && !shared && isToken(old.id) ? chunksSubject(bucket, old) : "";
  return {
    subject: `$O.${bucket.name}.C.${id}`,
    end: async (result) => {
      const meta = { name, description, bucket: bucket.name, nuid: id, ...result, mtime: new Date(now()).toISOString(), deleted: false, options: { max_chunk_size: CHUNK_BYTES } };
      await sent(metaSubject(bucket, name), JSON.stringify(meta), rollup());
      if (chunks) await js(`STREAM.PURGE.${bucket.stream}`, { filter: chunks });
    },
  };
}

/** The service ends an upload itself, with the last chunk; it must know their number before. */
async function serviceUpload(bucket, name, description, file) {
  const nonce = nuid.next();
  const chunks = Math.max(1, Math.ceil(file.size / CHUNK_BYTES));
  await sent(`$OBJ.${bucket.name}.info.${/^[-\w.]+$/.test(name) ? name : base64url(encoder.encode(name))}`, JSON.stringify({ name, description, nonce, chunks, size: file.size }));
  const subject = `$OBJ.${bucket.name}.chunks.${nonce}`;
  return { subject, end: async () => (file.size ? undefined : sent(subject, "")) };
}

export async function deleteObject(bucket, object) {
  if (object.layout === "service") return sent(`$OBJ.${bucket.name}`, JSON.stringify({ name: object.name, action: "delete" }));
  if (object.shared) throw new Error(`the metadata of ${object.name} name the chunks of another object`);
  const filter = chunksSubject(bucket, object);
  const meta = { name: object.name, description: object.description, bucket: bucket.name, nuid: object.id, size: 0, chunks: 0, digest: "", mtime: new Date(now()).toISOString(), deleted: true };
  await sent(metaSubject(bucket, object.name), JSON.stringify(meta), rollup());
  return js(`STREAM.PURGE.${bucket.stream}`, { filter });
}

/** Why this user cannot upload or delete, or "". */
export function whyNoChange(bucket) {
  if (bucket.mirror) return `A mirror takes its objects from ${bucket.mirror}.`;
  if (bucket.config.sealed) return "The bucket is sealed.";
  const subjects = bucket.stock ? [`$O.${bucket.name}.C.x`, `$O.${bucket.name}.M.x`, `$JS.API.STREAM.PURGE.${bucket.stream}`] : [`$OBJ.${bucket.name}.info.x`, `$OBJ.${bucket.name}.chunks.x`, `$OBJ.${bucket.name}`];
  return subjects.map(whyNot).find(Boolean) ?? "";
}

async function sent(subject, payload, headers = undefined) {
  const answer = (await raw(subject, payload, headers, ACK_MS)).json();
  if (answer.error) throw new ApiError(answer.error);
  return answer;
}

function metaSubject(bucket, name) {
  return `$O.${bucket.name}.M.${base64url(encoder.encode(name))}`;
}

function rollup() {
  const fields = newHeaders();
  fields.set("Nats-Rollup", "sub");
  return fields;
}

function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_");
}

/** Clients write the digest with and without its padding. */
function stripped(digest) {
  return digest.replace(/^sha-256=/i, "").replace(/=+$/, "");
}
