// Reading a stream's messages: by Direct Get in batches, which any replica or mirror answers, or one by one from the
// leader where the stream does not allow that. Every answer says who gave it.
import { headers as newHeaders } from "./vendor/nats.js";
import { ApiError, gather, js, raw } from "./session.js";

const OWN = new Set(["Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence", "Jc-Applied-Seq", "Jc-Stream", "Jc-Peer"]);
const WAIT_MS = 5000;
const MAX_SEARCH = 64;

function proving() {
  const fields = newHeaders();
  fields.set("Jc-Proof", "1");
  return fields;
}

/** A message of an answer: { seq, time, subject, headers: [[name, value]], data }. */
function decoded(message) {
  const fields = message.headers;
  const own = (name) => fields?.get(name) ?? "";
  return {
    seq: Number(own("Nats-Sequence")),
    time: own("Nats-Time-Stamp"),
    subject: own("Nats-Subject"),
    pending: Number(own("Nats-Num-Pending") || 0),
    headers: [...(fields ?? [])].flatMap(([name, values]) => (OWN.has(name) ? [] : values.map((value) => [name, value]))),
    data: message.data,
  };
}

/** Who answered: { peer, stream, applied }. */
function proofOf(message) {
  const fields = message.headers;
  const peer = fields?.get("Jc-Peer");
  return peer ? { peer, stream: fields.get("Jc-Stream"), applied: Number(fields.get("Jc-Applied-Seq")) } : null;
}

function checked(message) {
  const code = message.headers?.code ?? 0;
  if (code >= 400 && code !== 404) throw new ApiError({ code, description: message.headers.description || `status ${code}` });
  return message;
}

/**
 * Reads up to `batch` messages from `seq` (or `start_time`) on that match `subject`: { messages, left, proof }; `left` is
 * how many more match.
 */
export async function read(stream, { seq = 1, time = "", subject = "", batch = 50 }, direct = true) {
  if (!direct) return readFromLeader(stream, { seq, subject, batch });
  const request = { batch, ...(time ? { start_time: time } : { seq }), ...(subject ? { next_by_subj: subject } : {}) };
  const answers = await gather(`$JS.API.DIRECT.GET.${stream}`, JSON.stringify(request), {
    headers: proving(),
    wait: WAIT_MS,
    isLast: (message) => !message.headers?.get("Nats-Sequence"),
  });
  const end = answers.at(-1);
  if (!end || end.headers?.get("Nats-Sequence")) throw new Error("the answer broke off");
  checked(end);
  const messages = answers.slice(0, -1).map(decoded);
  return { messages, left: Number(end.headers.get("Nats-Num-Pending") || 0), proof: proofOf(end) };
}

async function readFromLeader(stream, { seq, subject, batch }) {
  const messages = [];
  let at = seq;
  while (messages.length < batch) {
    const found = await fromLeader(stream, { seq: at, next_by_subj: subject || ">" });
    if (!found) break;
    messages.push(found);
    at = found.seq + 1;
  }
  return { messages, left: messages.length === batch ? null : 0, proof: null };
}

async function fromLeader(stream, request) {
  try {
    const { message } = await js(`STREAM.MSG.GET.${stream}`, request);
    const block = message.hdrs ? atob(message.hdrs) : "";
    return {
      seq: message.seq,
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

/** One message by its sequence, or the last of a subject; null when there is none. Returns { message, proof }. */
export async function readOne(stream, request, direct = true) {
  if (!direct) return { message: await fromLeader(stream, request), proof: null };
  // As a batch of one, whose end tells who answered.
  if (request.seq) {
    const { messages, proof } = await read(stream, { seq: request.seq, batch: 1 });
    return { message: messages[0]?.seq === request.seq ? messages[0] : null, proof };
  }
  const answer = checked(await raw(`$JS.API.DIRECT.GET.${stream}`, JSON.stringify(request), proving()));
  return { message: answer.headers?.code === 404 ? null : decoded(answer), proof: proofOf(answer) };
}

/** The sequence from which about `count` messages that match `subject` are left, by halving: each step is one read. */
export async function startOfLast(stream, state, subject, count, direct = true) {
  if (!subject || !direct) return Math.max(state.first_seq, state.last_seq - count + 1);
  let low = state.first_seq;
  let high = state.last_seq;
  for (let step = 0; step < MAX_SEARCH && low < high; step += 1) {
    const middle = Math.floor((low + high + 1) / 2);
    const { messages, left } = await read(stream, { seq: middle, subject, batch: 1 });
    if (messages.length && left + 1 >= count) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * The last message of each subject that has one. More than `bytes` together (0: no limit) are cut off, at a message.
 */
export async function readLast(stream, subjects, bytes = 0, direct = true) {
  if (!subjects.length) return [];
  if (!direct) return (await Promise.all(subjects.map((subject) => fromLeader(stream, { last_by_subj: subject })))).filter(Boolean);
  const request = { multi_last: subjects, batch: subjects.length, ...(bytes ? { max_bytes: bytes } : {}) };
  const answers = await gather(`$JS.API.DIRECT.GET.${stream}`, JSON.stringify(request), {
    wait: WAIT_MS,
    isLast: (message) => !message.headers?.get("Nats-Sequence"),
  });
  const end = answers.at(-1);
  if (!end || end.headers?.get("Nats-Sequence")) throw new Error("the answer broke off");
  checked(end);
  return answers.slice(0, -1).map(decoded);
}
