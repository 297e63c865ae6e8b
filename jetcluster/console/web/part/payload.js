// A payload as JSON, text or hex, whichever it is; and headers.
import { html, useMemo, useState } from "../vendor/ui.js";
import { bytes } from "../format.js";

const MAX_SHOWN = 128 * 1024;
/** Bytes that are drawn; all of it can be saved. */
const MAX_PREVIEW = 160;
const strict = new TextDecoder("utf-8", { fatal: true });
const lenient = new TextDecoder();

/** Returns "json", "text" or "hex": what the bytes are. */
export function kindOf(data) {
  if (!data.length) return "text";
  const text = asText(data);
  if (text === null) return "hex";
  const first = text.trimStart()[0];
  if (first === "{" || first === "[" || first === '"') {
    try {
      JSON.parse(text);
      return "json";
    } catch {
      return "text";
    }
  }
  return "text";
}

function asText(data) {
  try {
    const text = strict.decode(data);
    return /[\u0000-\u0008\u000e-\u001f]/.test(text.slice(0, 4096)) ? null : text;
  } catch {
    return null;
  }
}

/** One line of a payload, for a table. */
export function preview(data) {
  if (!data.length) return "";
  const part = data.subarray(0, MAX_PREVIEW * 4);
  const text = asText(part.length < data.length ? trimmed(part) : part);
  if (text === null) return [...part.subarray(0, 24)].map((one) => one.toString(16).padStart(2, "0")).join(" ") + (data.length > 24 ? " …" : "");
  const line = text.slice(0, MAX_PREVIEW).replace(/\s+/g, " ");
  return line.length < text.length || part.length < data.length ? `${line}…` : line;
}

/** Without the last bytes, which may be half a character. */
function trimmed(part) {
  let end = part.length;
  while (end > part.length - 4 && end > 0 && (part[end - 1] & 0xc0) === 0x80) end -= 1;
  return part.subarray(0, Math.max(0, end - 1));
}

export function hexLines(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const digits = row.map((one) => one.toString(16).padStart(2, "0"));
    const letters = row.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits.slice(0, 8).join(" ").padEnd(23)}  ${digits.slice(8).join(" ").padEnd(23)}  ${letters}`);
  }
  return lines.join("\n");
}

function shown(data, way) {
  const part = data.subarray(0, MAX_SHOWN);
  if (way === "hex") return hexLines(part);
  // A document that is cut is none any more, and a number beyond 2^53 would be shown as another one.
  if (way === "json" && part.length === data.length) return pretty(lenient.decode(data));
  return lenient.decode(part);
}

/** Indents JSON as it is written: numbers keep all their digits, keys their order and duplicates. */
export function pretty(text) {
  let out = "";
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const token of text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? []) {
    if (token === "{" || token === "[") {
      depth += 1;
      out += token + line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      out = /[{[]\s*$/.test(out) ? out.trimEnd() + token : out + line() + token;
    } else if (token === ",") out += token + line();
    else if (token === ":") out += ": ";
    else out += token;
  }
  return out;
}

export function Payload({ data, name = "payload" }) {
  const kind = useMemo(() => kindOf(data), [data]);
  const [chosen, choose] = useState("");
  const way = chosen || kind;
  const text = useMemo(() => shown(data, way), [data, way]);
  const save = () => {
    const address = URL.createObjectURL(new Blob([data]));
    const link = Object.assign(document.createElement("a"), { href: address, download: name });
    link.click();
    URL.revokeObjectURL(address);
  };
  return html`<div class="payload">
    <div class="bar">
      ${["json", "text", "hex"].map((one) => html`<button key=${one} type="button" class="small" aria-pressed=${way === one} disabled=${one === "json" && kind !== "json"} onClick=${() => choose(one)}>${{ json: "JSON", text: "Text", hex: "Hex" }[one]}</button>`)}
      <span class="faint">${bytes(data.length)}${data.length > MAX_SHOWN ? `, the first ${bytes(MAX_SHOWN)} are shown` : ""}</span>
      <button type="button" class="small" onClick=${save}>Save</button>
    </div>
    <pre tabindex="0" aria-label="Payload">${text || html`<span class="faint">(empty)</span>`}</pre>
  </div>`;
}

/** `fields`: [[name, value], …]. */
export function Headers({ fields }) {
  if (!fields.length) return null;
  return html`<table class="headers"><caption>Headers</caption><tbody>
    ${fields.map(([name, value], at) => html`<tr key=${at}><th scope="row">${name}</th><td>${value}</td></tr>`)}
  </tbody></table>`;
}
