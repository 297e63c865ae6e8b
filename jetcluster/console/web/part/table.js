// A table that sorts by any column, filters, and draws only the rows in sight, so that a thousand cost what thirty do.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { counted, exact } from "../format.js";

export const ROW_PX = 34;
const DRAWN_BEYOND = 12;
const ALL_UP_TO = 60;
const words = new Intl.Collator("en", { numeric: true });
/** Many times as fast as `localeCompare` with options, which makes one for each comparison. */

/** A column of numbers: `value(row)` sorts, undefined ones as the least; `show` draws it. `hint` names the metric. */
export function figure(id, title, hint, value, show = exact) {
  return { id, title, hint, end: true, value: (row) => value(row) ?? -1, show: (row) => show(value(row)) };
}

/**
 * `columns`: [{ id, title, value(row), show(row)?, end?, hint? }]; `value` sorts and filters, `show` draws (default: the
 * value). `end` aligns numbers to the right. `keyOf(row)` names a row. `sort`: "id" or "-id".
 */
export function Table({ columns, rows, keyOf, sort = "", label, empty = "Nothing here.", search = true, children }) {
  const [order, setOrder] = useState(sort);
  const [wanted, setWanted] = useState("");
  const shown = useMemo(() => arranged(rows, columns, order, wanted), [rows, order, wanted, columns.length]);
  const { box, from, to } = useWindow(shown.length);
  const drawn = shown.slice(from, to);

  return html`<div class="table">
    ${(search || children) &&
    html`<div class="bar">
      ${search &&
      html`<input type="search" aria-label=${`Filter ${label}`} placeholder="Filter" value=${wanted}
        onInput=${(event) => setWanted(event.target.value)} />
      <span class="faint" role="status">${shown.length === rows.length ? "" : `${exact(shown.length)} of `}${counted(rows.length, label)}</span>`}
      ${children}
    </div>`}
    <div class="scroll" ref=${box} tabindex="0" role="region" aria-label=${label}>
      <table>
        <thead>
          <tr>
            ${columns.map((column) => {
              const bare = order.replace(/^-/, "");
              const state = bare !== column.id ? "none" : order.startsWith("-") ? "descending" : "ascending";
              return html`<th scope="col" class=${column.end ? "end" : ""} aria-sort=${state} title=${column.hint ?? ""}>
                <button type="button" onClick=${() => setOrder(state === "descending" ? column.id : state === "ascending" ? `-${column.id}` : column.end ? `-${column.id}` : column.id)}>
                  ${column.title}<span class="arrow" aria-hidden="true">${state === "none" ? "" : state === "ascending" ? "▲" : "▼"}</span>
                </button>
              </th>`;
            })}
          </tr>
        </thead>
        <tbody>
          ${from > 0 && html`<tr aria-hidden="true" style=${`height:${from * ROW_PX}px`}></tr>`}
          ${drawn.map(
            (row) => html`<tr key=${keyOf(row)}>
              ${columns.map((column) => html`<td class=${column.end ? "end" : ""}>${column.show ? column.show(row) : column.value(row)}</td>`)}
            </tr>`,
          )}
          ${to < shown.length && html`<tr aria-hidden="true" style=${`height:${(shown.length - to) * ROW_PX}px`}></tr>`}
        </tbody>
      </table>
      ${!shown.length && html`<p class="empty">${rows.length ? "Nothing matches the filter." : empty}</p>`}
    </div>
  </div>`;
}

function arranged(rows, columns, order, wanted) {
  let found = rows;
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) {
    found = found.filter((row) => {
      const text = columns.map((column) => column.value(row)).join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }
  const column = columns.find((one) => one.id === order.replace(/^-/, ""));
  if (!column) return found;
  const sign = order.startsWith("-") ? -1 : 1;
  return found
    .map((row) => [column.value(row), row])
    .sort(([a], [b]) => sign * compared(a, b))
    .map(([, row]) => row);
}

function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return words.compare(String(a), String(b));
}

/** The rows in sight of a box that scrolls: { box, from, to }. */
export function useWindow(count) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  useEffect(() => {
    const element = box.current;
    const look = () => setView({ top: element.scrollTop, height: element.clientHeight || 600 });
    look();
    element.addEventListener("scroll", look, { passive: true });
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", look);
      observer.disconnect();
    };
  }, []);
  if (count <= ALL_UP_TO) return { box, from: 0, to: count };
  const from = Math.max(0, Math.floor(view.top / ROW_PX) - DRAWN_BEYOND);
  return { box, from, to: Math.min(count, Math.ceil((view.top + view.height) / ROW_PX) + DRAWN_BEYOND) };
}
