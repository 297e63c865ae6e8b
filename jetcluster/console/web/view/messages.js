// The messages of a stream: from a sequence, a time or the newest on, of a subject; and one of them in full.
import { html, useEffect, useMemo, useState } from "../vendor/ui.js";
import { ago, bytes, counted, exact, time } from "../format.js";
import { after, read, readBefore, readNewest, readOne } from "../messages.js";
import { Act } from "../part/act.js";
import { confirm } from "../part/dialog.js";
import { Headers, Payload, preview } from "../part/payload.js";
import { Notice } from "../part/poll.js";
import { Table } from "../part/table.js";
import { Chip, Terms } from "../part/words.js";
import { refine, route, to } from "../route.js";
import { js, may, whyNot } from "../session.js";

const PAGE = 50;

/** A sequence in the address, as its digits; "" for none. */
function digits(query, name) {
  const text = query.get(name) ?? "";
  return /^\d{1,20}$/.test(text) && BigInt(text) > 0n ? text : "";
}

/** The request in the address: { from: "newest" | "first" | "seq" | "time", seq, time, subject }. */
function wish(query) {
  const seq = digits(query, "seq");
  const from = query.get("time") ? "time" : seq ? "seq" : (query.get("from") ?? "newest");
  return { from, seq, time: query.get("time") ?? "", subject: query.get("subject") ?? "" };
}

/** Whether this user reads by Direct Get, and why not at all: { direct, no }. */
function access({ name, allow_direct: allowed }) {
  const direct = Boolean(allowed) && may(`$JS.API.DIRECT.GET.${name}`);
  const ways = [...(allowed ? [`$JS.API.DIRECT.GET.${name}`] : []), `$JS.API.STREAM.MSG.GET.${name}`];
  return { direct, no: ways.some(may) ? "" : `This user may not read messages: that takes publishing to ${ways.join(" or ")}.` };
}

export function Messages({ info }) {
  const { no } = access(info.config);
  return no ? html`<p class="notice">${no}</p>` : html`<${Found} info=${info} />`;
}

function Found({ info }) {
  const { name } = info.config;
  const { direct } = access(info.config);
  const { query } = route.value;
  const wanted = wish(query);
  const opened = digits(query, "message");
  const [page, setPage] = useState({ busy: true });
  const [turn, setTurn] = useState(0);
  const key = JSON.stringify([wanted, turn]);

  useEffect(() => {
    let over = false;
    (async () => {
      setPage((old) => ({ ...old, busy: true, error: null }));
      try {
        const found = await load(name, info.state, wanted, direct);
        if (!over) setPage({ busy: false, last: info.state.last_seq, ...found });
      } catch (error) {
        if (!over) setPage((old) => ({ ...old, busy: false, error }));
      }
    })();
    return () => {
      over = true;
    };
  }, [name, key]);

  return html`<${Search} wanted=${wanted} again=${() => setTurn(turn + 1)} />
    ${opened && html`<${One} key=${opened} info=${info} seq=${opened} direct=${direct} />`}
    <${Notice} error=${page.error} />
    ${page.messages && html`<${Answered} info=${info} page=${page} direct=${direct} />`}
    ${page.messages && html`<${Rows} name=${name} messages=${page.messages} />`}
    ${page.messages && html`<${Pager} info=${info} page=${page} wanted=${wanted} direct=${direct} failed=${(error) => setPage((old) => ({ ...old, error }))} />`}
    ${page.busy && !page.messages && html`<p class="loading" role="status">Loading the messages…</p>`}`;
}

async function load(name, state, { from, seq, time: start, subject }, direct) {
  if (from === "newest" && state.messages) return readNewest(name, state, { subject, count: PAGE }, direct);
  const first = from === "seq" ? seq : Math.max(1, state.first_seq);
  return read(name, { seq: first, time: from === "time" ? start : "", subject, batch: PAGE }, direct);
}

function Search({ wanted, again }) {
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const from = form.get("from");
    const at = form.get("time");
    refine({
      subject: form.get("subject").trim(),
      from: from === "newest" || from === "first" ? from : "",
      seq: from === "seq" ? form.get("seq") : "",
      time: from === "time" && at ? new Date(at).toISOString() : "",
      message: "",
    });
    again();
  };
  const [from, setFrom] = useState(wanted.from);
  return html`<form class="bar" onSubmit=${submit} key=${JSON.stringify(wanted)}>
    <label>Subject <input name="subject" class="mono" placeholder="all, or a.*.c or a.>" spellcheck="false" value=${wanted.subject} /></label>
    <label>From <select name="from" value=${from} onChange=${(event) => setFrom(event.target.value)}>
      <option value="newest">the newest</option><option value="first">the first</option><option value="seq">a sequence</option><option value="time">a time</option>
    </select></label>
    ${from === "seq" && html`<label>Sequence <input name="seq" type="number" min="1" required value=${wanted.seq} /></label>`}
    ${from === "time" && html`<label>Time <input name="time" type="datetime-local" step="0.001" required value=${wanted.time ? localTime(wanted.time) : ""} /></label>`}
    <button class="primary">Show</button>
  </form>`;
}

function localTime(text) {
  const at = new Date(text);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 23);
}

/** Who answered, and how much of the stream it had. */
function Answered({ info, page, direct }) {
  const { proof, left, messages } = page;
  const leader = info.cluster?.leader;
  const behind = proof ? Math.max(0, page.last - proof.applied) : 0;
  const role = !proof ? "" : proof.stream !== info.config.name ? `mirror ${proof.stream}` : proof.peer === leader || !info.cluster ? "leader" : "follower";
  return html`<p class="faint answered">
    ${counted(messages.length, "messages")}${left === null ? "" : `, ${exact(left)} more match`}.
    ${proof
      ? html` Answered by <${Chip} kind=${role === "leader" ? "lead" : "good"} title="Jc-Peer of the answer">${proof.peer}<//> (${role}), which had applied up to ${exact(proof.applied)}${behind ? html`: <b>${exact(behind)} behind</b> what the leader told before` : ", all that the leader told before"}.`
      : direct ? "" : html` Read from the leader one by one, as ${info.config.allow_direct ? "this user may not ask replicas" : html`<code>allow_direct</code> is off`}.`}
  </p>`;
}

function Rows({ name, messages }) {
  const columns = useMemo(() => [
    { id: "seq", title: "Sequence", end: true, value: (one) => one.seq, show: (one) => html`<a href=${here({ message: one.id })}>${exact(one.id)}</a>` },
    { id: "time", title: "Time", value: (one) => one.time, show: (one) => html`<span title=${one.time}>${time(one.time)}</span>` },
    { id: "subject", title: "Subject", value: (one) => one.subject, show: (one) => html`<span class="clip mono" title=${one.subject}>${one.subject}</span>` },
    { id: "size", title: "Size", end: true, value: (one) => one.data.length, show: (one) => bytes(one.data.length) },
    { id: "headers", title: "Headers", end: true, value: (one) => one.headers.length, show: (one) => one.headers.length || "" },
    { id: "payload", title: "Payload", value: (one) => preview(one.data), show: (one) => html`<span class="clip wide mono">${preview(one.data)}</span>` },
  ], [name]);
  return html`<${Table} label="messages" columns=${columns} rows=${messages} keyOf=${(one) => one.id} sort="-seq" search=${false} empty="No message matches." />`;
}

function here(fields) {
  const { path, query } = route.value;
  return to(...path, { ...Object.fromEntries(query), ...fields });
}

function Pager({ info, page, wanted, direct, failed }) {
  const { messages, left } = page;
  const { name } = info.config;
  const [busy, setBusy] = useState(false);
  const show = (seq) => refine({ from: "", time: "", seq, message: "" });
  const isFirst = messages.length ? messages[0].seq <= info.state.first_seq : !info.state.messages;
  const earlier = async () => {
    setBusy(true);
    try {
      const { messages: found } = await readBefore(name, info.state, page, { subject: wanted.subject, count: PAGE }, direct);
      show((found[0] ?? messages[0] ?? { id: "1" }).id);
    } catch (error) {
      failed(error);
    }
    setBusy(false);
  };
  return html`<div class="bar">
    <button type="button" disabled=${isFirst || busy} onClick=${earlier}>Earlier</button>
    <button type="button" disabled=${!messages.length || left === 0} onClick=${() => show(after(messages.at(-1).id))}>Later</button>
    <button type="button" onClick=${() => refine({ from: "first", seq: "", time: "", message: "" })}>First</button>
    <button type="button" onClick=${() => refine({ from: "", seq: "", time: "", message: "" })}>Newest</button>
  </div>`;
}

function One({ info, seq, direct }) {
  const { name } = info.config;
  const [state, set] = useState({});
  useEffect(() => {
    readOne(name, seq, direct).then(set, (error) => set({ error }));
  }, [name, seq]);
  const { message, proof, error } = state;
  const remove = () =>
    confirm({
      title: `Delete message ${seq}`,
      explain: html`<p>The message <b>${exact(seq)}</b> of <code>${message.subject}</code> goes for good. Other sequences stay as they are.</p>`,
      name: seq,
      verb: "Delete",
      act: async () => {
        await js(`STREAM.MSG.DELETE.${name}`, `{"seq":${seq}}`);
        refine({ message: "" });
      },
      done: `Message ${seq} is deleted.`,
    });
  const { deny_delete: denied, sealed } = info.config;
  const no = sealed ? "The stream is sealed." : denied ? "The configuration denies it." : whyNot(`$JS.API.STREAM.MSG.DELETE.${name}`);
  return html`<section class="panel" aria-label=${`Message ${seq}`}>
    <div class="heading"><h2>Message ${exact(seq)}</h2><div class="actions">
      <button type="button" onClick=${() => set({}) || readOne(name, seq, direct).then(set, (failure) => set({ error: failure }))}>Read again</button>
      <${Act} class="danger" why=${no || (message ? "" : "There is no message.")} act=${remove}>Delete<//>
      <button type="button" onClick=${() => refine({ message: "" })}>Close</button></div></div>
    <${Notice} error=${error} />
    ${message === null && html`<p>There is no such message (any more).</p>`}
    ${message && html`<${Terms} rows=${[
      ["Subject", html`<a class="mono" href=${here({ subject: message.subject, message: "", seq: "", from: "newest" })}>${message.subject}</a>`],
      ["Time", html`${time(message.time)} <span class="faint">${ago(message.time)}</span>`],
      ["Answered by", proof ? html`${proof.peer} <span class="faint">of ${proof.stream}, which had applied up to ${exact(proof.applied)}</span>` : undefined],
    ]} />
    <${Headers} fields=${message.headers} /><${Payload} data=${message.data} name=${`${name}-${seq}`} />`}
  </section>`;
}
