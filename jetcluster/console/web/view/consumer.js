// One consumer: how far it is, what is left to do, its configuration, and what may be done with it.
import { html, useRef, useState } from "../vendor/ui.js";
import { now } from "../clock.js";
import { condition, STATE_OF } from "../consumer_list.js";
import { ago, count, exact, limit, nanoseconds, time } from "../format.js";
import { token } from "../names.js";
import { Act } from "../part/act.js";
import { Chart } from "../part/chart.js";
import { close, confirm, open, tell } from "../part/dialog.js";
import { Stale, usePoll, useRates, Waiting } from "../part/poll.js";
import { Chip, Figure, Figures, Terms } from "../part/words.js";
import { go, to } from "../route.js";
import { js, whyNot } from "../session.js";
import { Replicas } from "./cluster.js";
import { edit } from "./consumer_form.js";
import { reset } from "./consumer_reset.js";

const LIVE_MS = 2000;
const MOST_POINTS = 1800;
/** An hour of history, while the page is open. */

export function Consumer({ stream, name }) {
  const poll = usePoll(async () => {
    const [info, of] = await Promise.all([js(`CONSUMER.INFO.${token(stream, "stream")}.${token(name, "consumer")}`), js(`STREAM.INFO.${stream}`)]);
    return { info, of: of.state, now: now(), at: performance.now() };
  }, LIVE_MS, [stream, name]);
  const past = usePast(poll.data);
  const data = poll.data;
  const rates = useRates(data?.at ?? 0, data && { delivered: data.info.delivered.consumer_seq, acked: data.info.ack_floor.consumer_seq });
  const title = html`<a href=${to("streams", stream)}>${stream}</a> <span class="faint">/</span> ${name}`;
  if (!data) return html`<h1>${title}</h1><${Waiting} poll=${poll} what="the consumer" />`;
  const { info, of } = data;
  const { state, mood } = condition(info);
  return html`<div class="heading"><h1>${title}</h1> <${Chip} kind=${mood} title=${STATE_OF}>${state}<//>
      <${Chip} title="config.deliver_subject: a push consumer has one">${info.config.deliver_subject ? "push" : "pull"}<//>
      ${!info.config.durable_name && html`<${Chip} title="It goes when nobody uses it.">ephemeral<//>`}
      <${Actions} ...${{ stream, name, info, again: poll.again }} /></div>
    ${info.config.description && html`<p class="faint">${info.config.description}</p>`}
    ${info.paused && html`<p class="notice warn">Paused for ${nanoseconds(info.pause_remaining)}, until ${time(info.config.pause_until)}.</p>`}
    <${Stale} poll=${poll} />
    <${Figures}>
      <${Figure} name="Pending" value=${exact(info.num_pending)} metric="num_pending" />
      <${Figure} name="Ack pending" value=${`${exact(info.num_ack_pending)}${info.config.max_ack_pending > 0 ? ` of ${count(info.config.max_ack_pending)}` : ""}`} metric="num_ack_pending of max_ack_pending" kind=${state === "waits for acks" ? "warn" : ""} />
      <${Figure} name="Waiting pulls" value=${exact(info.num_waiting)} metric="num_waiting" />
      <${Figure} name="Redelivered" value=${exact(info.num_redelivered)} metric="num_redelivered" kind=${info.num_redelivered ? "warn" : ""} />
      <${Figure} name="Delivers" value=${`${count(rates.delivered)}/s`} metric="growth of delivered.consumer_seq" />
      <${Figure} name="Done" value=${`${count(rates.acked)}/s`} metric="growth of ack_floor.consumer_seq" />
      <${Figure} name="Last delivery" value=${ago(info.delivered.last_active)} metric="delivered.last_active" />
      <${Figure} name="Last ack" value=${ago(info.ack_floor.last_active)} metric="ack_floor.last_active" />
    <//>
    <${Progress} info=${info} of=${of} />
    ${past.times.length > 1 &&
    html`<${Chart} title="Left to do" metric="num_pending, num_ack_pending" times=${past.times} show=${count}
      series=${[{ label: "pending", values: past.pending }, { label: "ack pending", values: past.ackPending }]} />`}
    <div class="columns">
      <section class="panel"><h2>State</h2><${Terms} rows=${stateRows(info, of)} /></section>
      <section class="panel"><h2>Configuration</h2><${Terms} rows=${configRows(info.config)} /></section>
    </div>`;
}

/** What was left to do since the page was opened. */
function usePast(data) {
  const kept = useRef({ times: [], pending: [], ackPending: [], now: 0 });
  const past = kept.current;
  if (data && data.now !== past.now) {
    const add = (list, value) => [...list.slice(1 - MOST_POINTS), value];
    kept.current = { now: data.now, times: add(past.times, data.now / 1000), pending: add(past.pending, data.info.num_pending), ackPending: add(past.ackPending, data.info.num_ack_pending) };
  }
  return kept.current;
}

/** A bar from the stream's first to its last sequence: done, delivered and not done, to come. */
function Progress({ info, of }) {
  const last = of.last_seq;
  const first = Math.min(of.first_seq, last + 1);
  const within = (seq) => Math.min(Math.max(seq, first - 1), last);
  const floor = within(info.ack_floor.stream_seq);
  const delivered = Math.max(floor, within(info.delivered.stream_seq));
  const parts = [
    ["done", floor - first + 1, `done, up to ${exact(floor)}`],
    ["open", delivered - floor, `delivered, not all acknowledged, up to ${exact(delivered)}`],
    ["left", last - delivered, `not delivered, up to ${exact(last)}`],
  ].filter(([, size]) => size > 0);
  return html`<section class="panel"><h2>Ack floor in the stream</h2>
    <div class="progress" role="img" aria-label=${parts.map(([, size, words]) => `${exact(size)} ${words}`).join("; ") || "The stream is empty."}>
      ${parts.map(([kind, size, words]) => html`<span key=${kind} class=${kind} style=${`flex-grow:${size}`} title=${`${exact(size)} sequences ${words}`}></span>`)}
    </div>
    <div class="ends"><span title="state.first_seq of the stream">first ${exact(of.first_seq)}</span>
      <span title="ack_floor.stream_seq">ack floor <b>${exact(info.ack_floor.stream_seq)}</b></span>
      <span title="delivered.stream_seq">delivered <b>${exact(info.delivered.stream_seq)}</b></span>
      <span title="state.last_seq of the stream">last ${exact(last)}</span></div></section>`;
}

function stateRows(info, of) {
  const position = (one) => `${exact(one.stream_seq)} in the stream, ${exact(one.consumer_seq)} of its own`;
  return [
    ["Created", time(info.created)],
    ["Leader and replicas", info.cluster ? html`<${Replicas} group=${{ leader: info.cluster.leader, replicas: (info.cluster.replicas ?? []).map((one) => ({ ...one, lag: one.lag ?? 0, silent: (one.active ?? 0) / 1e9 })) }} />` : undefined],
    ["Delivered", position(info.delivered)],
    ["Ack floor", position(info.ack_floor)],
    ["Stream", html`<a href=${to("streams", info.stream_name)}>${info.stream_name}</a>, ${exact(of.messages)} messages`],
    ["Wait for others of their keys, or their members", info.order_per_key && exact(info.order_per_key.messages_waiting)],
    ["Keys that wait", info.order_per_key && exact(info.order_per_key.keys_waiting)],
    ["Members that share the keys", info.order_per_key && exact(info.order_per_key.members ?? 0)],
    ...lettersOf(info),
    ...(info.priority_groups ?? []).map((one) => [`Group ${one.group}`, one.pinned_client_id ? `pinned to ${one.pinned_client_id} since ${time(one.pinned_ts)}` : "nobody is pinned"]),
  ];
}

function lettersOf({ dead_letters: letters }) {
  if (!letters) return [];
  return [
    ["Dead letters that wait", letters.waiting ? `${exact(letters.waiting)}, the first given up ${ago(letters.oldest)}` : exact(0)],
    ["Why they wait", letters.last_error],
  ];
}

function configRows(config) {
  const duration = (value) => (value ? nanoseconds(value) : undefined);
  return [
    ["Subjects", config.filter_subjects?.join(", ") || config.filter_subject || "all"],
    ["Begins at", `${config.deliver_policy}${config.opt_start_seq ? ` ${exact(config.opt_start_seq)}` : ""}${config.opt_start_time ? ` ${time(config.opt_start_time)}` : ""}`],
    ["Acknowledge", config.ack_policy],
    ["Waits for an ack", duration(config.ack_wait)],
    ["Backoff", config.backoff?.map(nanoseconds).join(", ")],
    ["Deliveries at most", limit(config.max_deliver)],
    ["Unacknowledged at most", limit(config.max_ack_pending)],
    ["Unacknowledged of a key at most", config.max_ack_pending_per_subject && exact(config.max_ack_pending_per_subject)],
    ["Key", config.key],
    ["Dead letters to", config.dead_letter?.subject],
    ["Waiting pulls at most", config.max_waiting ? exact(config.max_waiting) : undefined],
    ["Messages of a pull at most", config.max_batch ? exact(config.max_batch) : undefined],
    ["Wait of a pull at most", duration(config.max_expires)],
    ["Priority", config.priority_policy && `${config.priority_policy}: ${(config.priority_groups ?? []).join(", ")}`],
    ["Delivers to", config.deliver_subject],
    ["Deliver group", config.deliver_group],
    ["Heartbeat", duration(config.idle_heartbeat)],
    ["Flow control", config.flow_control ? "yes" : undefined],
    ["Pace", config.replay_policy],
    ["Bits per second at most", config.rate_limit_bps ? exact(config.rate_limit_bps) : undefined],
    ["Only headers", config.headers_only ? "yes" : undefined],
    ["Deleted when unused for", duration(config.inactive_threshold)],
    ["Sampled", config.sample_freq],
    ...Object.entries(config.metadata ?? {}).filter(([key]) => !key.startsWith("_nats.")).map(([key, value]) => [key, value]),
  ];
}

function Actions({ stream, name, info, again }) {
  const at = `${stream}.${name}`;
  const pinned = (info.priority_groups ?? []).filter((one) => one.pinned_client_id);
  const actions = [
    { verb: "Edit", subject: `$JS.API.CONSUMER.CREATE.${at}`, act: () => edit({ stream, info, done: again }) },
    info.paused
      ? { verb: "Resume", subject: `$JS.API.CONSUMER.PAUSE.${at}`, act: () => done(js(`CONSUMER.PAUSE.${at}`, {}), `${name} delivers again.`, again) }
      : { verb: "Pause", subject: `$JS.API.CONSUMER.PAUSE.${at}`, act: () => pause(at, name, again) },
    { verb: "Reset", subject: `$JS.API.CONSUMER.RESET.${at}`, act: () => reset({ stream, name, info, done: again }) },
    ...(pinned.length ? [{ verb: "Unpin", subject: `$JS.API.CONSUMER.UNPIN.${at}`, act: () => unpin(at, pinned, again) }] : []),
    { verb: "Step down", subject: `$JS.API.CONSUMER.LEADER.STEPDOWN.${at}`, no: info.cluster?.replicas?.length ? "" : "There is no other replica.", act: () => stepDown(at, name, info, again) },
    { verb: "Delete", subject: `$JS.API.CONSUMER.DELETE.${at}`, danger: true, act: () => remove(stream, name, info) },
  ];
  return html`<div class="actions">${actions.map(({ verb, subject, no = "", danger, act }) => {
    return html`<${Act} key=${verb} class=${danger ? "danger" : ""} why=${no || whyNot(subject)} act=${act}>${verb}<//>`;
  })}</div>`;
}

async function done(asked, words, again) {
  try {
    await asked;
    tell(words);
  } catch (error) {
    tell(error.message, "bad");
  }
  await again();
}

const PAUSES = [["10 minutes", 600], ["1 hour", 3600], ["1 day", 86_400], ["100 years, until somebody resumes it", 3_155_760_000]];

function pause(at, name, again) {
  open(`Pause ${name}`, () => html`<${Pause} ...${{ at, name, again }} />`);
}

function Pause({ at, name, again }) {
  const [until, setUntil] = useState("");
  const send = (moment) => {
    close();
    return done(js(`CONSUMER.PAUSE.${at}`, { pause_until: moment.toISOString() }), `${name} is paused until ${time(moment.toISOString())}.`, again);
  };
  const moment = new Date(until);
  return html`<p>It delivers nothing until then. What it has delivered can be acknowledged.</p>
    <div class="bar">${PAUSES.map(([words, length]) => html`<button key=${words} type="button" onClick=${() => send(new Date(now() + length * 1000))}>${words}</button>`)}</div>
    <form onSubmit=${(event) => { event.preventDefault(); send(moment); }}>
      <label>Or until <input type="datetime-local" step="1" value=${until} onInput=${(event) => setUntil(event.target.value)} /></label>
      <div class="buttons"><button type="button" onClick=${close}>Cancel</button><button class="primary" disabled=${!(moment.getTime() > now())}>Pause</button></div>
    </form>`;
}

function unpin(at, pinned, again) {
  const group = pinned[0];
  confirm({
    title: "Unpin",
    explain: html`<p>The client ${group.pinned_client_id} gets no more messages of group ${group.group}; the next that pulls is pinned.</p>`,
    verb: "Unpin",
    act: () => js(`CONSUMER.UNPIN.${at}`, { group: group.group }).then(again),
    done: `Nobody is pinned in ${group.group}.`,
  });
}

function stepDown(at, name, info, again) {
  confirm({
    title: `Another leader for ${name}`,
    explain: html`<p>${info.cluster?.leader || "The leader"} hands the consumer over to another replica. Waiting pulls are told “Leadership Change”.</p>`,
    verb: "Step down",
    act: () => js(`CONSUMER.LEADER.STEPDOWN.${at}`).then(again),
    done: `${name} has another leader.`,
  });
}

function remove(stream, name, info) {
  confirm({
    title: `Delete ${name}`,
    explain: html`<p>Its place in the stream is lost: ${exact(info.num_pending)} pending and ${exact(info.num_ack_pending)} unacknowledged messages. The messages stay in ${stream}, unless only this consumer kept them.</p>`,
    name,
    verb: "Delete the consumer",
    act: async () => {
      await js(`CONSUMER.DELETE.${stream}.${name}`);
      go("consumers");
    },
    done: `${name} is deleted.`,
  });
}
