// Fields of a form about a configuration: each has a name, a kind, a hint, and the server's word when it refuses it.
import { html, useState } from "../vendor/ui.js";
import { fromHuman } from "../format.js";

const NS = 1e9;
const UNITS = [["d", 86_400], ["h", 3600], ["m", 60], ["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];

/** Nanoseconds as a duration that can be typed and means the same: 5400e9 is "90m". */
export function durationText(value) {
  if (!value) return "";
  const [unit, size] = UNITS.find(([, one]) => value % Math.round(one * NS) === 0);
  return `${value / Math.round(size * NS)}${unit}`;
}

/**
 * `field`: { name, label, kind, hint, fixed }; kinds are "text", "number", "duration" (nanoseconds), "flag", "lines" (a list,
 * one per line), "durations", "pairs" (an object, `key=value` per line), "time" (RFC 3339), or a list of choices. `change(name,
 * value)` gets undefined for an empty field, and NaN for a duration that is none. `error`: what is wrong with it, or "".
 */
export function Field({ field, value, change, error = "" }) {
  const { name, label, kind, hint = "", fixed = false } = field;
  const id = `field-${name}`;
  const given = (next) => change(name, next);
  const common = { id, name, disabled: fixed, "aria-invalid": error ? "true" : undefined, "aria-describedby": error ? `${id}-error` : undefined };
  const below = error && html`<span class="reason" id=${`${id}-error`}>${error}</span>`;
  if (kind === "flag") {
    return html`<label class="check" title=${hint}><input ...${common} type="checkbox" checked=${Boolean(value)} onChange=${(event) => given(event.target.checked || undefined)} /> ${label} ${below}</label>`;
  }
  if (Array.isArray(kind)) {
    return html`<label title=${hint}>${label} <select ...${common} value=${value ?? kind[0]} onChange=${(event) => given(event.target.value)}>
      ${kind.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>${below}</label>`;
  }
  if (kind in TYPED) return html`<${Typed} ...${{ label, hint, value, given, common, below, ...TYPED[kind] }} />`;
  const typed = (event) => given(event.target.value === "" ? undefined : kind === "number" ? Number(event.target.value) : event.target.value);
  return html`<label title=${hint}>${label} <input ...${common} type=${kind} spellcheck="false" placeholder=${hint} value=${value ?? ""} onInput=${typed} />${below}</label>`;
}

const lines = (text) => text.split("\n").map((one) => one.trim()).filter(Boolean);
const duration = (text) => Math.round(fromHuman(text) * NS);
const some = (list) => (list.length ? list : undefined);

// Kinds whose text is kept as it was typed: `show(value)` writes it, `parse(text)` reads it.
const TYPED = {
  duration: { show: durationText, parse: (text) => (text.trim() ? duration(text) : undefined) },
  durations: { rows: 2, show: (value) => (value ?? []).map(durationText).join("\n"), parse: (text) => some(lines(text).map(duration)) },
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

function Typed({ label, hint, value, given, common, below, rows = 0, show, parse }) {
  const [text, setText] = useState(() => show(value));
  const parsed = parse(text);
  const wrong = [parsed].flat().some((one) => Number.isNaN(one));
  const typed = (event) => {
    setText(event.target.value);
    given(parse(event.target.value));
  };
  const shared = { ...common, "aria-invalid": common["aria-invalid"] ?? (wrong ? "true" : undefined), spellcheck: false, placeholder: hint, value: text, onInput: typed };
  return html`<label title=${hint}>${label} ${rows ? html`<textarea ...${shared} rows=${rows}></textarea>` : html`<input ...${shared} />`}
    ${wrong && html`<span class="reason">not a duration: try 30s, 5m, 2h</span>`}${below}</label>`;
}

/** True when a value of a draft is a duration that cannot be read. */
export function hasWrong(draft) {
  return Object.values(draft).flat().some((one) => typeof one === "number" && Number.isNaN(one));
}
