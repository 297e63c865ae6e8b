// Lists of consumers, the slowest first: of the whole account, and of one stream.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { now } from "../clock.js";
import { consumersOf, consumersOfAll, STATE_OF } from "../consumer_list.js";
import { ago, exact, time } from "../format.js";
import { Act } from "../part/act.js";
import { Notice, Stale } from "../part/poll.js";
import { Table } from "../part/table.js";
import { Chip, Figure, Figures } from "../part/words.js";
import { to } from "../route.js";
import { whyNone } from "../session.js";
import { edit } from "./consumer_form.js";

const LEAST_MS = 5000;
const REST = 10;
/** Pauses between two loads are that many times as long as a load takes: a large list must not keep the servers busy. */

export function Consumers() {
  const list = useList(consumersOfAll, []);
  return html`<h1>Consumers</h1>
    <${Summary} list=${list} />
    <${List} list=${list} withStream empty="No stream has a consumer." />`;
}

/** The consumers of a stream, with a button to create one. */
export function ConsumersOf({ stream }) {
  const list = useList((seen, stopped) => consumersOf(stream, seen, stopped), [stream]);
  return html`<${List} list=${list} empty="This stream has no consumers.">
    <${Act} class="primary" why=${whyNone(`$JS.API.CONSUMER.CREATE.${stream}.>`)} act=${() => edit({ stream, done: list.again })}>New consumer<//>
  <//>`;
}

/** Loads again and again while the page is looked at: { rows, total, failed, error, loading, at, again }. */
function useList(load, keys) {
  const [state, set] = useState({ rows: null, total: 0, failed: [], error: null, loading: true });
  const [turn, setTurn] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    let over = false;
    let timer = 0;
    const run = async () => {
      if (document.hidden) {
        timer = setTimeout(run, LEAST_MS);
        return;
      }
      const began = performance.now();
      set((old) => ({ ...old, loading: true }));
      try {
        // The first load shows what it has; later ones replace the whole list at the end, so that no row comes and goes.
        const seen = (part) => !over && set((old) => (old.whole ? { ...old, progress: part.rows.length, total: part.total } : { ...old, ...part }));
        const found = await latest.current(seen, () => over);
        if (!over) set({ ...found, data: found.rows, error: null, loading: false, whole: true, at: performance.now(), when: now() });
      } catch (error) {
        if (!over) set((old) => ({ ...old, error, loading: false }));
      }
      if (!over) timer = setTimeout(run, Math.max(LEAST_MS, REST * (performance.now() - began)));
    };
    set((old) => (turn ? old : { rows: null, total: 0, failed: [], error: null, loading: true }));
    run();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [turn, ...keys]);
  return { ...state, again: () => setTurn((old) => old + 1) };
}

function Summary({ list }) {
  if (!list.rows) return null;
  const rows = list.rows ?? [];
  const sum = (field) => exact(rows.reduce((total, one) => total + one[field], 0));
  const of = (state) => rows.filter((one) => one.state === state).length;
  const stuck = of("waits for acks");
  const alone = of("nobody pulls") + of("nobody listens") + of("nobody has pulled");
  return html`<${Figures}>
    <${Figure} name="Consumers" value=${exact(rows.length)} metric="CONSUMER.LIST" />
    <${Figure} name="Pending" value=${sum("pending")} metric="num_pending, all consumers" />
    <${Figure} name="Ack pending" value=${sum("ackPending")} metric="num_ack_pending, all consumers" />
    <${Figure} name="Redelivered" value=${sum("redelivered")} metric="num_redelivered, all consumers" />
    <${Figure} name="Wait for acks" value=${stuck} metric="num_ack_pending has reached max_ack_pending" kind=${stuck ? "warn" : ""} />
    <${Figure} name="Nobody takes" value=${alone} metric="num_pending or num_ack_pending, and no num_waiting or push_bound" kind=${alone ? "warn" : ""} />
  <//>`;
}

function List({ list, withStream = false, empty, children }) {
  if (!list.rows) return list.error ? html`<${Notice} error=${list.error} />` : html`<p class="loading" role="status">Loading the consumers…</p>`;
  const none = list.failed.length ? "Of those that answer there are none." : empty;
  return html`${list.whole ? html`<${Stale} poll=${list} />` : html`<${Notice} error=${list.error} />`}
    ${list.failed.length > 0 &&
    html`<p class="notice warn">The consumers of ${list.failed.length} streams are missing: ${list.failed.slice(0, 5).map((one) => `${one.stream} (${one.error.message})`).join(", ")}${list.failed.length > 5 ? ", …" : ""}</p>`}
    <${Table} label="consumers" columns=${columns(withStream)} rows=${list.rows} keyOf=${(one) => one.key} sort="-left" empty=${none}>
      ${children}
      <span class="faint" role="status">${progress(list)}</span>
    <//>`;
}

function progress(list) {
  if (!list.whole && list.rows.length < list.total) return `loading, ${exact(list.rows.length)} of ${exact(list.total)}`;
  return list.when ? `as of ${new Date(list.when).toLocaleTimeString("en-GB")}` : "";
}

function columns(withStream) {
  const when = (id, title, hint) => ({ id, title, hint, end: true, value: (one) => one[id] ?? "", show: (one) => html`<span title=${time(one[id])}>${ago(one[id])}</span>` });
  const number = (id, title, hint) => ({ id, title, hint, end: true, value: (one) => one[id], show: (one) => exact(one[id]) });
  return [
    { id: "name", title: "Consumer", value: (one) => one.name, show: (one) => html`<a href=${to("streams", one.stream, "consumers", one.name)}><b>${one.name}</b></a>` },
    ...(withStream ? [{ id: "stream", title: "Stream", value: (one) => one.stream, show: (one) => html`<a href=${to("streams", one.stream)}>${one.stream}</a>` }] : []),
    { id: "state", title: "State", hint: STATE_OF, value: (one) => `${one.state} ${one.kind}`, show: (one) => html`<${Chip} kind=${one.mood} title=${STATE_OF}>${one.state}<//> <span class="faint">${one.kind}</span>` },
    number("left", "To do", "num_pending and num_ack_pending together"),
    number("pending", "Pending", "num_pending: messages that it has not delivered yet"),
    number("ackPending", "Ack pending", "num_ack_pending: delivered, not acknowledged"),
    number("waiting", "Waiting", "num_waiting: pull requests that wait for messages"),
    number("redelivered", "Redelivered", "num_redelivered: ack pending that were delivered more than once"),
    number("floor", "Ack floor", "ack_floor.stream_seq: everything up to this sequence is done"),
    when("delivered", "Last delivery", "delivered.last_active"),
    when("acked", "Last ack", "ack_floor.last_active"),
    { id: "leader", title: "Leader", hint: "cluster.leader: the server that delivers", value: (one) => one.leader || "none", show: (one) => one.leader || html`<${Chip} kind="bad" title="cluster.leader">none<//>` },
  ];
}
