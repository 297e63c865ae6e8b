// Two texts, and what differs.
import { html, useMemo } from "../vendor/ui.js";
import { diff } from "../diff.js";

const AROUND = 3;
/** Lines that stay around a change; longer stretches of equal lines are folded. */

export function Difference({ old, now, oldName, nowName }) {
  const lines = useMemo(() => folded(diff(old, now)), [old, now]);
  if (old === now) return html`<p class="faint">They are equal.</p>`;
  if (!lines) return html`<p class="faint">Too long, or too different, to compare line by line.</p>`;
  return html`<p class="faint"><span class="minus">− ${oldName}</span> <span class="plus">+ ${nowName}</span></p>
    <pre class="difference" tabindex="0" aria-label="Difference">${lines.map(([sign, line], at) =>
      html`<span key=${at} class=${{ "+": "plus", "-": "minus", " ": "", "…": "faint" }[sign]}>${sign === "-" ? "−" : sign} ${line}\n</span>`)}</pre>`;
}

function folded(lines) {
  if (!lines) return null;
  const near = new Array(lines.length).fill(false);
  lines.forEach(([sign], at) => {
    if (sign !== " ") for (let beside = Math.max(0, at - AROUND); beside <= Math.min(lines.length - 1, at + AROUND); beside += 1) near[beside] = true;
  });
  const found = [];
  for (let at = 0; at < lines.length; at += 1) {
    if (near[at]) found.push(lines[at]);
    else {
      let end = at;
      while (end + 1 < lines.length && !near[end + 1]) end += 1;
      found.push(["…", `${end - at + 1} equal lines`]);
      at = end;
    }
  }
  return found;
}
