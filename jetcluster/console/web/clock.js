// The servers' clock, by the times in their answers: that of the browser may be hours off.
const MOST_MS = 2000;
/** Answers that took longer say little about the time. */
let offset = 0;

/** Learns from an answer that a server wrote at `text` (RFC 3339), between `from` and `till` of the browser's clock. */
export function heard(text, from, till = Date.now()) {
  const at = Date.parse(text);
  if (Number.isNaN(at) || till - from > MOST_MS) return;
  if (at >= from + offset && at <= till + offset) return;
  offset = at - (from + till) / 2;
}

/** Unix milliseconds, as the servers count them. */
export function now() {
  return Date.now() + offset;
}
