// Durations in nanoseconds as people type them, to the nanosecond: "90m", "1h30m", "1.5s".
const UNITS = [["d", 86_400_000_000_000n], ["h", 3_600_000_000_000n], ["m", 60_000_000_000n], ["s", 1_000_000_000n], ["ms", 1_000_000n], ["µs", 1000n], ["ns", 1n]];
const SIZES = new Map([...UNITS, ["us", 1000n], ["min", 60_000_000_000n], ["y", 31_536_000_000_000_000n]]);
const PART = /^(\d+)(?:\.(\d+))?(min|ms|µs|us|ns|y|d|h|m|s)/;

const READABLE = 10_000n;

/** `value` in the largest unit that gives a whole number, 5400e9 is "90m", in several if that is a long one. "" for none. */
export function durationText(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "";
  const all = BigInt(value);
  if (all === 0n) return "";
  const [unit, size] = UNITS.find(([, one]) => all % one === 0n);
  if (all / size < READABLE) return `${all / size}${unit}`;
  let rest = all;
  const parts = UNITS.map(([name, one]) => {
    const number = rest / one;
    rest %= one;
    return number ? `${number}${name}` : "";
  });
  return parts.join("");
}

/** Nanoseconds of a text, a BigInt beyond 2^53; a number alone is seconds; NaN for other text, or less than a nanosecond. */
export function durationOf(text) {
  let rest = text.replace(/\s+/g, "").replace(/μ/g, "µ"); // Greek mu, and the micro sign
  if (/^\d+(\.\d+)?$/.test(rest)) rest += "s";
  if (!rest) return Number.NaN;
  let total = 0n;
  while (rest) {
    const found = PART.exec(rest);
    if (!found) return Number.NaN;
    const [part, whole, fraction = "", unit] = found;
    const scaled = BigInt(whole + fraction) * SIZES.get(unit);
    const scale = 10n ** BigInt(fraction.length);
    if (scaled % scale) return Number.NaN;
    total += scaled / scale;
    rest = rest.slice(part.length);
  }
  return total <= Number.MAX_SAFE_INTEGER ? Number(total) : total;
}
