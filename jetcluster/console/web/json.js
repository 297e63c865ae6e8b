// JSON without loss: whole numbers beyond 2^53, which the servers have in sequences, sizes and times, keep their digits.
import { nuid } from "./vendor/nats.js";

const MARK = nuid.next();
/** Stands before the digits of such a number while it is a string; nobody else knows it. */
const LONG = /"(?:[^"\\]|\\.)*"|-?\d{16,}(?![\d.eE])/g;
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");

/** As JSON.parse; a whole number that a Number cannot hold is a BigInt. Throws SyntaxError. */
export function parse(text) {
  JSON.parse(text); // the text as it is has to be valid, and the error is to be about that
  let found = false;
  const marked = text.replace(LONG, (token) => {
    if (token[0] === '"' || Number.isSafeInteger(Number(token))) return token;
    found = true;
    return `"${MARK}${token}"`;
  });
  if (!found) return JSON.parse(text);
  return JSON.parse(marked, (_, value) => (typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value));
}

/** As JSON.stringify; a BigInt is a number with all its digits. */
export function stringify(value, indent = 0) {
  const text = JSON.stringify(value, (_, one) => (typeof one === "bigint" ? `${MARK}${one}` : one), indent);
  return text.replace(MARKED, "$1");
}

/** The number of `digits`, a BigInt if a Number cannot hold it; NaN for other text. */
export function integer(digits) {
  const text = digits.trim();
  if (!/^-?\d+$/.test(text)) return Number.NaN;
  return Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text);
}
