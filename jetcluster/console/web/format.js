// Numbers, sizes and times as people read them. `null` and `undefined` are a dash.
import { now } from "./clock.js";

const NANOSECONDS = 1e9;
const DASH = "–";
const SAME_SECONDS = 3;
const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const digits = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });

export function count(value) {
  if (value === null || value === undefined) return DASH;
  if (Math.abs(value) < 100_000) return counts.format(value);
  const units = ["K", "M", "G", "T"];
  let at = -1;
  while (Math.abs(value) >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${counts.format(value)} ${units[at]}`;
}

/** "1 key", "2 keys": a number with its noun, which is given in plural. */
export function counted(number, nouns) {
  return `${exact(number)} ${number === 1 ? nouns.replace(/s$/, "") : nouns}`;
}

/** A number with all its digits; one beyond 2^53, which JSON has rounded, says so. `value`: a number, a BigInt, or digits. */
export function exact(value) {
  if (value === null || value === undefined) return DASH;
  if (typeof value === "string") return digits.format(BigInt(value));
  if (typeof value === "bigint") return digits.format(value);
  return Number.isInteger(value) && !Number.isSafeInteger(value) ? `≈ ${digits.format(value)}` : digits.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

/** A limit of the configuration, where -1 and 0 are none. */
export function limit(value, show = count) {
  return value === undefined || value === null || value <= 0 ? "none" : show(value);
}

export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${Math.round(value * 1e6)} µs`;
  if (size < 1) return `${counts.format(value * 1000)} ms`;
  if (size < 120) return `${counts.format(value)} s`;
  if (size < 7200) return `${Math.round(value / 60)} min`;
  if (size < 172_800) return `${counts.format(value / 3600)} h`;
  return `${counts.format(value / 86_400)} d`;
}

export function nanoseconds(value) {
  return value === null || value === undefined ? DASH : seconds(value / NANOSECONDS);
}

/** Go's zero time, and no time at all, are "never". */
export function isNever(text) {
  return !text || text.startsWith("0001-01-01");
}

export function time(text) {
  if (isNever(text)) return "never";
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : `${at.toLocaleDateString("en-CA")} ${at.toLocaleTimeString("en-GB")}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

/** How long ago, by the servers' clock; they may differ a little from each other. */
export function ago(text) {
  if (isNever(text)) return "never";
  const exactly = (now() - new Date(text).getTime()) / 1000;
  const passed = Math.abs(exactly) < 10 ? exactly : Math.round(exactly); // nobody reads tenths of a minute
  return passed < -SAME_SECONDS ? `in ${seconds(-passed)}` : `${seconds(Math.max(0, passed))} ago`;
}

/** Go's durations in monitoring pages, "1h2m3.5s", "280µs", and "10min". Returns seconds, NaN for other text. */
export function fromGo(text) {
  const units = { h: 3600, min: 60, m: 60, s: 1, ms: 1e-3, "µs": 1e-6, us: 1e-6, ns: 1e-9, d: 86_400, y: 31_536_000 };
  let total = 0;
  let rest = text ?? "";
  if (!rest) return Number.NaN;
  while (rest) {
    const found = /^(\d+\.?\d*|\.\d+)(min|ms|µs|us|ns|y|d|h|m|s)/.exec(rest);
    if (!found) return Number.NaN;
    total += Number(found[1]) * units[found[2]];
    rest = rest.slice(found[0].length);
  }
  return total;
}
