// Reading a stream's messages: by Direct Get in batches, which any replica or mirror answers, or one by one from the
// leader where the stream does not allow that. Every answer says who gave it.
//
// A stored message may have fields named like the server's own, and a status; the server's come last, and its end of a
// batch has no sequence. A sequence beyond 2^53 is rounded as a number: `id` has its digits, and requests are made of those.
import { headers as newHeaders } from "./vendor/nats.js";
import { ApiError, gather, js } from "./session.js";

const OWN = new Set(["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence"]);
const IDLE_MS = 8000;
/** Between two messages of an answer; how long all of it takes depends on its size and the line. */
const PAGE_BYTES = 2 * 1024 * 1024;
const MAX_SEARCH = 64;
const MAX_WIDENINGS = 16;

function proving() {
  const fields = newHeaders();
  fields.set("Jc-Proof", "1");
  return fields;
}

/** What the server says in a field: its own stands behind those that were stored. */
function own(message, name) {
  return message.headers?.values(name).at(-1) ?? "";
}

/** A message of an answer: { seq, id, time, subject, headers: [[name, value]], data }. */
function decoded(message) {
  const id = own(message, "Nats-Sequence");
  return {
    seq: Number(id),
    id,
    time: own(message, "Nats-Time-Stamp"),
    subject: own(message, "Nats-Subject"),
    headers: [...(message.headers ?? [])].flatMap(([name, values]) => (OWN.has(name) ? values.slice(0, -1) : values).map((value) => [name, value])),
    data: message.data,
  };
}

/** The end of a batch: a status, and no message. */
function isEnd(message) {
  return Boolean(message.headers?.code) && !message.headers.has("Nats-Sequence");
}

/** Who answered: { peer, stream, applied }. */
function proofOf(end) {
  const peer = own(end, "Jc-Peer");
  return peer ? { peer, stream: own(end, "Jc-Stream"), applied: Number(own(end, "Jc-Applied-Seq")) } : null;
}

/** The answers of a batch: { messages, left, proof }. Throws ApiError. */
async function batch(stream, request, headers = undefined) {
  const answers = await gather(`$JS.API.DIRECT.GET.${stream}`, request, { headers, wait: IDLE_MS, idle: true, isLast: isEnd });
  const end = answers.at(-1);
  if (!end || !isEnd(end)) throw new Error(answers.length ? `the answer broke off after ${answers.length} messages` : "no answer in time");
  const { code, description } = end.headers;
  if (code >= 400 && code !== 404) throw new ApiError({ code, description: description || `status ${code}` });
  return { messages: answers.slice(0, -1).map(decoded), left: Number(own(end, "Nats-Num-Pending") || 0), proof: proofOf(end) };
}

/** A request from sequence `seq` on, a number or its digits, which JSON.stringify would round. */
function from(seq, fields) {
  const rest = JSON.stringify(fields).slice(1);
  return `{"seq":${BigInt(seq)}${rest === "}" ? "" : ","}${rest}`;
}

/** The sequence behind one, a number or its digits. */
export function after(seq) {
  return String(BigInt(seq) + 1n);
}

/**
 * Reads up to `batch` messages, or as many as fit into `bytes`, from `seq` (or `time`) on that match `subject`: { messages, left,
 * proof }; `left` is how many more match, null where nobody counts.
 */
export async function read(stream, { seq = 1, time = "", subject = "", batch: most = 50, bytes = PAGE_BYTES }, direct = true) {
  if (!direct) return readFromLeader(stream, { seq, time, subject, most, bytes });
  const fields = { batch: most, max_bytes: bytes, ...(subject ? { next_by_subj: subject } : {}) };
  return batch(stream, time ? JSON.stringify({ ...fields, start_time: time }) : from(seq, fields), proving());
}

/** All messages that match, page by page; `most` ends it earlier. */
export async function* each(stream, { subject = "", batch: size = 50, most = Infinity }, direct = true) {
  let seq = 1;
  let found = 0;
  while (found < most) {
    const { messages, left } = await read(stream, { seq, subject, batch: Math.min(size, most - found) }, direct);
    yield* messages;
    if (!messages.length || left === 0) return;
    found += messages.length;
    seq = after(messages.at(-1).id);
  }
}

/** As `read`, one by one; `before`: a sequence that is not reached. */
async function readFromLeader(stream, { seq, time, subject, most, bytes, before = Infinity }) {
  const messages = [];
  const next_by_subj = subject || ">";
  let size = 0;
  let request = time ? JSON.stringify({ start_time: time, next_by_subj }) : from(seq, { next_by_subj });
  while (messages.length < most && size < bytes) {
    const found = await fromLeader(stream, request);
    if (!found || found.seq >= before) return { messages, left: 0, proof: null };
    messages.push(found);
    size += found.data.length;
    request = from(after(found.id), { next_by_subj });
  }
  return { messages, left: null, proof: null };
}

/** The message of a request to the leader, or null. `id`: the digits of its sequence, if they are known. Throws ApiError. */
async function fromLeader(stream, request, id = "") {
  try {
    const { message } = await js(`STREAM.MSG.GET.${stream}`, request);
    if (!id && !Number.isSafeInteger(message.seq)) throw new Error("sequences beyond 2^53 are listed only where the stream allows Direct Get");
    const block = message.hdrs ? atob(message.hdrs) : "";
    return {
      seq: message.seq,
      id: id || String(message.seq),
      time: message.time,
      subject: message.subject,
      headers: block.split("\r\n").slice(1).filter(Boolean).map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]),
      data: message.data ? Uint8Array.from(atob(message.data), (one) => one.charCodeAt(0)) : new Uint8Array(),
    };
  } catch (error) {
    if (error instanceof ApiError && error.code === 404) return null;
    throw error;
  }
}

/** One message by the digits of its sequence: { message, proof }; `message` is null when there is none. */
export async function readOne(stream, id, direct = true) {
  if (!direct) return { message: await fromLeader(stream, from(id, {}), id), proof: null };
  // As a batch of one, whose end tells who answered.
  const { messages, proof } = await read(stream, { seq: id, batch: 1 });
  return { message: messages[0]?.id === id ? messages[0] : null, proof };
}

/**
 * The sequence from which about `count` messages that match `subject` are left, by halving: each step is one read. Only where the
 * answers are counted, by Direct Get.
 */
async function startOfLast(stream, state, subject, count) {
  // With nothing deleted it is known without a question.
  if (!subject && state.messages === state.last_seq - state.first_seq + 1) return Math.max(1, state.first_seq, state.last_seq - count + 1);
  let low = Math.max(1, state.first_seq);
  let high = state.last_seq;
  for (let step = 0; step < MAX_SEARCH && low < high; step += 1) {
    const middle = Math.floor((low + high + 1) / 2);
    const { messages, left } = await read(stream, { seq: middle, subject, batch: 1 });
    if (messages.length && left + 1 >= count) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The newest `count` messages that match, or as many of them as one answer may have: as `read`. */
export async function readNewest(stream, state, { subject = "", count = 50, bytes = PAGE_BYTES }, direct = true) {
  if (!direct) return readBack(stream, state, { subject, count, before: null, bytes });
  const found = await read(stream, { seq: await startOfLast(stream, state, subject, count), subject, batch: count, bytes });
  if (!found.left || found.messages.length >= count) return found;
  // The older ones of them have filled the answer: the newest are what is asked for.
  const fewer = Math.max(1, Math.min(Math.floor(count / 2), found.messages.length));
  return readNewest(stream, state, { subject, count: fewer, bytes: 2 * PAGE_BYTES }, direct);
}

/** The `count` messages that match and come before `page`, which `read` returned: as `read`. */
export async function readBefore(stream, state, page, { subject = "", count = 50 }, direct = true) {
  if (!page.messages.length) return readNewest(stream, state, { subject, count }, direct);
  const [first] = page.messages;
  if (!direct) return readBack(stream, state, { subject, count, before: first.seq, bytes: PAGE_BYTES });
  const from = await startOfLast(stream, state, subject, count + page.messages.length + (page.left ?? 0));
  return read(stream, { seq: from, subject, batch: count });
}

/** Back from the last that matches, or from `before`, by the leader: it can only be asked for the next, so stretches are tried. */
async function readBack(stream, state, { subject, count, before, bytes }) {
  const found = [];
  let size = 0;
  let end = before;
  if (end === null) {
    const last = await fromLeader(stream, JSON.stringify({ last_by_subj: subject || ">" }));
    if (!last) return { messages: [], left: 0, proof: null };
    found.push(last);
    size += last.data.length;
    end = last.seq;
  }
  let width = count;
  for (let step = 0; step < MAX_WIDENINGS && found.length < count && end > state.first_seq && size < bytes; step += 1) {
    const room = count - found.length;
    const start = Math.max(state.first_seq, end - width);
    const { messages: older, left } = await readFromLeader(stream, { seq: start, subject, most: room + 1, bytes: bytes - size, before: end });
    if (left === null) {
      // There is more than fits: the newest of it are in a narrower stretch.
      if (width <= 1) break;
      width = Math.max(1, Math.min(room, Math.floor(width / 4)));
      continue;
    }
    found.unshift(...older);
    size += older.reduce((sum, one) => sum + one.data.length, 0);
    end = start;
    width *= 4;
  }
  return { messages: found, left: before === null ? 0 : null, proof: null };
}

/**
 * The last message of each subject that has one. More than `bytes` together (0: no limit) are cut off, at a message.
 */
export async function readLast(stream, subjects, bytes = 0, direct = true) {
  if (!subjects.length) return [];
  if (!direct) return (await Promise.all(subjects.map((subject) => fromLeader(stream, JSON.stringify({ last_by_subj: subject }))))).filter(Boolean);
  const request = { multi_last: subjects, batch: subjects.length, ...(bytes ? { max_bytes: bytes } : {}) };
  return (await batch(stream, JSON.stringify(request))).messages;
}
