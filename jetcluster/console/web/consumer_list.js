// The consumers of all streams, put together page by page.
import { isNever } from "./format.js";
import { js, jsAll } from "./session.js";

const AT_A_TIME = 6;
/** Streams that are asked at the same time: each request is answered by another leader. */
const SHOWN_EVERY_MS = 250;

/**
 * Returns { rows, total, failed: [{ stream, error }] }. `seen({ rows, total })` is told now and again how far it is;
 * `stopped()` ends it early.
 */
export async function consumersOfAll(seen = () => {}, stopped = () => false) {
  const pick = ({ config, state }) => (state.consumer_count ? { name: config.name, count: state.consumer_count } : null);
  const streams = await jsAll("STREAM.LIST", "streams", { pick });
  const total = streams.reduce((sum, one) => sum + one.count, 0);
  const rows = [];
  const failed = streams.missing.map((stream) => ({ stream, error: new Error("the stream does not answer") }));
  let shown = performance.now();
  const waiting = streams.map((one) => one.name);
  const work = async () => {
    while (waiting.length && !stopped()) {
      const stream = waiting.shift();
      try {
        await pagesOf(stream, (found) => {
          rows.push(...found);
          if (performance.now() - shown < SHOWN_EVERY_MS) return;
          shown = performance.now();
          seen({ rows: rows.slice(), total, failed });
        }, stopped);
      } catch (error) {
        failed.push({ stream, error });
      }
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, work));
  return { rows, total, failed };
}

/** The consumers of one stream, as `consumersOfAll`. */
export async function consumersOf(stream, seen = () => {}, stopped = () => false) {
  const rows = [];
  await pagesOf(stream, (found, total) => {
    rows.push(...found);
    seen({ rows: rows.slice(), total, failed: [] });
  }, stopped);
  return { rows, total: rows.length, failed: [] };
}

async function pagesOf(stream, each, stopped) {
  let got = 0;
  while (!stopped()) {
    const page = await js(`CONSUMER.LIST.${stream}`, { offset: got });
    const found = page.consumers ?? [];
    got += found.length;
    each(found.map(row), page.total);
    if (!found.length || got >= page.total) return;
  }
}

/** What a list shows of an answer of CONSUMER.INFO. `left`: messages that the consumer has still to get done with. */
export function row(info) {
  const { config } = info;
  return {
    key: `${info.stream_name} ${info.name}`,
    stream: info.stream_name,
    name: info.name,
    kind: config.deliver_subject ? "push" : "pull",
    durable: Boolean(config.durable_name),
    pending: info.num_pending,
    ackPending: info.num_ack_pending,
    left: info.num_pending + info.num_ack_pending,
    waiting: info.num_waiting,
    redelivered: info.num_redelivered,
    floor: info.ack_floor.stream_seq,
    delivered: info.delivered.last_active,
    acked: info.ack_floor.last_active,
    leader: info.cluster?.leader ?? (info.cluster ? "" : "–"),
    ...condition(info),
  };
}

/** The fields that a consumer's state is made of. */
export const STATE_OF = "from paused, num_waiting, push_bound, num_ack_pending, max_ack_pending and dead_letters";

/** What the consumer is doing, in words: { state, kind }. */
export function condition(info) {
  const { config } = info;
  if (info.cluster && !info.cluster.leader) return { state: "no leader", mood: "bad" };
  if (info.paused) return { state: "paused", mood: "warn" };
  const full = config.max_ack_pending > 0 && info.num_ack_pending >= config.max_ack_pending;
  if (full) return { state: "waits for acks", mood: "warn" };
  if (info.dead_letters?.waiting) return { state: "letters wait", mood: "warn" };
  const taken = config.deliver_subject ? info.push_bound : info.num_waiting > 0;
  if (taken) return { state: info.num_pending ? "delivers" : "up to date", mood: "good" };
  if (!info.num_pending && !info.num_ack_pending) return { state: "up to date", mood: "" };
  return { state: config.deliver_subject ? "nobody listens" : isNever(info.delivered.last_active) ? "nobody has pulled" : "nobody pulls", mood: info.num_pending ? "warn" : "" };
}
