// The keys of a bucket as a tree; what is in sight is read with its last value.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { ago, counted, exact, time } from "../format.js";
import { branches, rowsOf } from "../key_tree.js";
import { entriesOf, keysOf } from "../kv.js";
import { preview } from "../part/payload.js";
import { Notice } from "../part/poll.js";
import { ROW_PX, useWindow } from "../part/table.js";
import { refine, route, to } from "../route.js";
import { Operation } from "./bucket.js";

const OPEN_UP_TO = 200;
/** Keys: so many are shown with all branches open. */
const SETTLE_MS = 120;
const READ_BYTES = 512 * 1024;
const MOST_READ = 5000;
const RELOAD_UP_TO = 5000;
/** Keys: longer lists are loaded again by hand, as they are some megabytes. */

export function Keys({ bucket }) {
  const [state, set] = useState({ keys: null, kept: () => 0, error: null, got: 0, total: 0, seq: 0 });
  const [turn, setTurn] = useState(0);
  const [wanted, setWanted] = useState(route.value.query.get("filter") ?? "");
  const [filter, setFilter] = useState(wanted);
  const [toggled, setToggled] = useState(new Set());
  const cache = useRef(new Map());
  const { last_seq: seq } = bucket.state;
  const changed = state.keys && state.seq !== seq;

  useEffect(() => {
    let over = false;
    (async () => {
      try {
        const found = await keysOf(bucket, (got, total) => !over && set((old) => ({ ...old, got, total })));
        cache.current.clear();
        if (!over) set({ ...found, error: null, seq });
      } catch (error) {
        if (!over) set((old) => ({ ...old, error }));
      }
    })();
    return () => {
      over = true;
    };
  }, [bucket.stream, turn, (bucket.state.num_subjects ?? 0) <= RELOAD_UP_TO ? seq : 0]);

  useEffect(() => {
    const timer = setTimeout(() => {
      setFilter(wanted);
      setToggled(new Set());
      refine({ filter: wanted });
    }, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [wanted]);

  const found = useMemo(() => matching(state.keys ?? [], filter), [state.keys, filter]);
  const usual = useMemo(() => (found.length <= OPEN_UP_TO ? branches(found) : new Set()), [found]);
  const opened = useMemo(() => usual.symmetricDifference?.(toggled) ?? differing(usual, toggled), [usual, toggled]);
  const rows = useMemo(() => rowsOf(found, opened), [found, opened]);
  const toggle = (path) => setToggled((old) => differing(old, new Set([path])));

  if (!state.keys) {
    if (state.error) return html`<${Notice} error=${state.error} />`;
    return html`<p class="loading" role="status">Loading the keys…${state.total ? ` ${exact(state.got)} of ${exact(state.total)}` : ""}</p>`;
  }
  return html`<${Notice} error=${state.error} />
    <div class="bar"><input type="search" aria-label="Filter keys" placeholder="Part of a key" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
      <span class="faint" role="status">${found.length === state.keys.length ? "" : `${exact(found.length)} of `}${counted(state.keys.length, "keys")}, deleted ones with them</span>
      <button type="button" onClick=${() => setTurn(turn + 1)}>Load again</button>
      ${state.left > 0 && html`<span class="reason">${exact(state.left)} more keys are not loaded</span>`}
      ${changed && html`<span class="faint">changed since it was loaded</span>`}</div>
    <${Tree} ...${{ bucket, rows, toggle, cache: cache.current, kept: state.kept, seq: state.seq }} />`;
}

function matching(keys, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length ? keys.filter((key) => words.every((word) => key.toLowerCase().includes(word))) : keys;
}

function differing(one, other) {
  const found = new Set(one);
  for (const path of other) found.has(path) ? found.delete(path) : found.add(path);
  return found;
}

function Tree({ bucket, rows, toggle, cache, kept, seq }) {
  const { box, from, to: end } = useWindow(rows.length);
  const [, drawn] = useState(0);
  const [error, setError] = useState(null);
  const shown = rows.slice(from, end);
  const names = shown.filter((one) => one.key !== undefined).map((one) => one.key);

  useEffect(() => {
    const missing = names.filter((key) => !cache.has(key));
    if (!missing.length) return () => {};
    const timer = setTimeout(async () => {
      try {
        if (cache.size > MOST_READ) cache.clear();
        for (const key of missing) cache.set(key, null);
        for (const one of await entriesOf(bucket, missing, READ_BYTES)) cache.set(one.key, { ...one, value: preview(one.value) });
        setError(null);
      } catch (failure) {
        setError(failure);
      }
      drawn((old) => old + 1);
    }, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [names.join("\n"), seq]);

  return html`<${Notice} error=${error} />
    <div class="scroll" ref=${box} tabindex="0" role="region" aria-label="keys">
    <table class="keys">
      <thead><tr><th scope="col">Key</th><th scope="col">Value</th><th scope="col" class="end" title="sequence of the last value">Revision</th>
        <th scope="col" class="end" title="revisions that are kept">Kept</th><th scope="col" class="end">Changed</th></tr></thead>
      <tbody>
        ${from > 0 && html`<tr aria-hidden="true" style=${`height:${from * ROW_PX}px`}></tr>`}
        ${shown.map((row) => (row.key === undefined ? html`<${Branch} key=${row.path} row=${row} toggle=${toggle} />` : html`<${Leaf} key=${row.key} ...${{ bucket, row, entry: cache.get(row.key), kept: kept(row.key) }} />`))}
        ${end < rows.length && html`<tr aria-hidden="true" style=${`height:${(rows.length - end) * ROW_PX}px`}></tr>`}
      </tbody>
    </table>
    ${!rows.length && html`<p class="empty">No key.</p>`}</div>`;
}

const indent = (depth) => `padding-left:${0.7 + depth * 1.3}rem`;

function Branch({ row, toggle }) {
  return html`<tr><td colspan="5" style=${indent(row.depth)}>
    <button type="button" class="plain branch" aria-expanded=${row.open} onClick=${() => toggle(row.path)}><span aria-hidden="true">${row.open ? "▾" : "▸"}</span> <b class="mono">${row.label}</b></button>
    <span class="faint">${counted(row.count, "keys")}</span></td></tr>`;
}

function Leaf({ bucket, row, entry, kept }) {
  const value = entry && (entry.operation === "PUT" ? html`<span class="mono clip wide">${entry.value || html`<span class="faint">(empty)</span>`}</span>` : html`<${Operation} of=${entry.operation} />`);
  return html`<tr><td style=${indent(row.depth)}><a class="mono" href=${to("kv", bucket.name, "k", row.key)} title=${row.key}>${row.label || "(no name)"}</a></td>
    <td>${value}</td><td class="end">${entry ? exact(entry.revision) : ""}</td><td class="end">${exact(kept)}</td>
    <td class="end">${entry && html`<span title=${time(entry.time)}>${ago(entry.time)}</span>`}</td></tr>`;
}
