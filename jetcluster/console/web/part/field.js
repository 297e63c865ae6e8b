// Fields of a form about a configuration: each has a name, a kind, a hint, and the server's word when it refuses it.
import { html, useState } from "../vendor/ui.js";
import { durationOf, durationText } from "../duration.js";
import { integer } from "../json.js";

/**
 * `field`: { name, label, kind, hint, fixed }; kinds are "text", "number" (whole, beyond 2^53 a BigInt), "duration"
 * (nanoseconds), "flag", "lines" (a list, one per line), "durations", "pairs" (an object, `key=value` per line), "time" (RFC
 * 3339), or a list of choices. `change(name, value)` gets undefined for an empty field, and NaN for what cannot be read.
 * `error`: what is wrong with it, or "".
 */
export function Field({ field, value, change, error = "" }) {
  const { name, label, kind, hint = "", fixed = false } = field;
  const id = `field-${name}`;
  const given = (next) => change(name, next);
  const common = { id, name, disabled: fixed, "aria-invalid": error ? "true" : undefined, "aria-describedby": error ? `${id}-error` : undefined };
  const below = error && html`<span class="reason" id=${`${id}-error`}>${error}</span>`;
  if (kind === "flag") {
    return html`<label class="check" title=${hint}><input ...${common} type="checkbox" checked=${Boolean(value)} onChange=${(event) => given(event.target.checked)} /> ${label} ${below}</label>`;
  }
  if (Array.isArray(kind)) {
    return html`<label title=${hint}>${label} <select ...${common} value=${value ?? kind[0]} onChange=${(event) => given(event.target.value)}>
      ${kind.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>${below}</label>`;
  }
  if (kind in TYPED) return html`<${Typed} ...${{ label, hint, value, given, common, below, ...TYPED[kind] }} />`;
  const typed = (event) => given(event.target.value === "" ? undefined : event.target.value);
  return html`<label title=${hint}>${label} <input ...${common} spellcheck="false" placeholder=${hint} value=${value ?? ""} onInput=${typed} />${below}</label>`;
}

const lines = (text) => text.split("\n").map((one) => one.trim()).filter(Boolean);
const some = (list) => (list.length ? list : undefined);

const NO_DURATION = "not a duration: try 30s, 5m, 2h, 7d";

// Kinds whose text is kept as it was typed: `show(value)` writes it, `parse(text)` reads it.
const TYPED = {
  number: { inputmode: "numeric", wrong: "not a whole number", show: (value) => String(value ?? ""), parse: (text) => (text.trim() ? integer(text) : undefined) },
  duration: { wrong: NO_DURATION, show: durationText, parse: (text) => (text.trim() ? durationOf(text) : undefined) },
  durations: { rows: 2, wrong: NO_DURATION, show: (value) => (value ?? []).map(durationText).join("\n"), parse: (text) => some(lines(text).map(durationOf)) },
  lines: { rows: 2, show: (value) => (value ?? []).join("\n"), parse: (text) => some(lines(text)) },
  pairs: {
    rows: 2,
    show: (value) => Object.entries(value ?? {}).map(([key, one]) => `${key}=${one}`).join("\n"),
    parse: (text) => (text.trim() ? Object.fromEntries(lines(text).map((line) => [line.split("=")[0].trim(), line.split("=").slice(1).join("=").trim()])) : undefined),
  },
  time: { show: (value) => value ?? "", parse: (text) => (text.trim() ? asTime(text) : undefined) },
};

/** Local time as people type it becomes RFC 3339; what is no time stays, for the server to say so. */
function asTime(text) {
  const at = new Date(text.trim());
  return Number.isNaN(at.getTime()) ? text.trim() : /\.\d{4,}/.test(text) ? text.trim() : at.toISOString();
}

function Typed({ label, hint, value, given, common, below, rows = 0, inputmode, wrong: says, show, parse }) {
  const [text, setText] = useState(() => show(value));
  const parsed = parse(text);
  const wrong = [parsed].flat().some(Number.isNaN);
  const typed = (event) => {
    setText(event.target.value);
    given(parse(event.target.value));
  };
  const shared = { ...common, "aria-invalid": common["aria-invalid"] ?? (wrong ? "true" : undefined), spellcheck: false, inputmode, placeholder: hint, value: text, onInput: typed };
  return html`<label title=${hint}>${label} ${rows ? html`<textarea ...${shared} rows=${rows}></textarea>` : html`<input ...${shared} />`}
    ${wrong && html`<span class="reason">${says}</span>`}${below}</label>`;
}

/** True when a value of a draft cannot be read. */
export function hasWrong(draft) {
  return Object.values(draft).flat().some(Number.isNaN);
}
