// What a reset of a consumer would deliver again: counted by reading, so nothing has changed before somebody decides.
import { read } from "./messages.js";
import { js, may } from "./session.js";

const MOST_FILTERS = 32;
const FIRST = 5;

/**
 * Returns { start, again, fresh, last, first: [message], exact }: from which sequence the consumer would go on, how many
 * messages come again, how many follow that it never had, the last sequence that comes again, and the first messages.
 * `seq` 0: after the ack floor, as the server does it. `exact` is false where nobody can count: `again` is then the most.
 */
export async function previewOf(consumer, stream, seq) {
  const [info, { config, state }] = await Promise.all([js(`CONSUMER.INFO.${stream}.${consumer}`), js(`STREAM.INFO.${stream}`)]);
  const start = Math.max(seq || info.ack_floor.stream_seq + 1, state.first_seq);
  const filters = info.config.filter_subjects ?? [info.config.filter_subject || ">"];
  const direct = config.allow_direct && may(`$JS.API.DIRECT.GET.${stream}`);
  const last = info.delivered.stream_seq;
  const found = await Promise.all(filters.slice(0, MOST_FILTERS).map((subject) => read(stream, { seq: start, subject, batch: FIRST }, direct)));
  const first = found.flatMap((one) => one.messages).sort((a, b) => a.seq - b.seq).slice(0, FIRST);
  const exact = filters.length <= MOST_FILTERS && found.every((one) => one.left !== null);
  const all = exact ? found.reduce((sum, one) => sum + one.messages.length + one.left, 0) : Math.max(0, state.last_seq - start + 1);
  // What it has not delivered yet comes in any case; a start beyond that skips some of it.
  const fresh = Math.min(all, info.num_pending);
  return { start, all, again: start > last ? 0 : all - fresh, fresh, skipped: start > last + 1 ? info.num_pending - all : 0, last, lastOfStream: state.last_seq, first, exact };
}
