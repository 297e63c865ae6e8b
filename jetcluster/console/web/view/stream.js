// One stream: its state and who has it, its messages, subjects, consumers and configuration.
import { html } from "../vendor/ui.js";
import { ago, bytes, count, exact, limit, nanoseconds, time } from "../format.js";
import { stringify } from "../json.js";
import { token } from "../names.js";
import { Act } from "../part/act.js";
import { Stale, usePoll, useRates, Waiting } from "../part/poll.js";
import { confirm, tell } from "../part/dialog.js";
import { Chip, Figure, Figures, Tabs, Terms } from "../part/words.js";
import { go, route, to } from "../route.js";
import { exactly, js, whyNone, whyNot } from "../session.js";
import { lagOf, Replicas } from "./cluster.js";
import { ConsumersOf } from "./consumers.js";
import { Messages } from "./messages.js";
import { publishTo } from "./publish.js";
import { groupOf, kindOf } from "./streams.js";
import { editStream } from "./stream_form.js";
import { Subjects } from "./subjects.js";

const LIVE_MS = 2000;
const TABS = [
  ["state", "State"],
  ["messages", "Messages"],
  ["subjects", "Subjects"],
  ["consumers", "Consumers"],
  ["configuration", "Configuration"],
];

export function Stream({ name }) {
  const at = route.value.path[2] ?? "state";
  const poll = usePoll(async () => js(`STREAM.INFO.${token(name, "stream")}`), LIVE_MS, [name]);
  const rates = useRates(poll.data ? Date.parse(poll.data.ts) : 0, poll.data && { seq: poll.data.state.last_seq, bytes: poll.data.state.bytes });
  if (!poll.data) return html`<h1>${name}</h1><${Waiting} poll=${poll} what="the stream" />`;
  const info = poll.data;
  return html`<div class="heading"><h1>${name}</h1> <${Kinds} info=${info} /><${Actions} info=${info} again=${poll.again} /></div>
    ${info.config.description && html`<p class="faint">${info.config.description}</p>`}
    <${Stale} poll=${poll} />
    <${Tabs} label="Parts of the stream" tabs=${TABS} at=${at} href=${(id) => to("streams", name, id)} />
    ${at === "state" && html`<${State} info=${info} rates=${rates} />`}
    ${at === "messages" && html`<${Messages} info=${info} />`}
    ${at === "subjects" && html`<${Subjects} info=${info} />`}
    ${at === "consumers" && html`<${ConsumersOf} stream=${name} />`}
    ${at === "configuration" && html`<${Configuration} info=${info} again=${poll.again} />`}`;
}

function Kinds({ info }) {
  const { config } = info;
  const words = [
    [kindOf(config.name), "by its name"],
    [config.storage, "config.storage"],
    [config.retention === "limits" ? "" : config.retention, "config.retention"],
    [config.mirror ? `mirror of ${config.mirror.name}` : "", "config.mirror"],
    [config.sealed ? "sealed" : "", "config.sealed"],
  ];
  return words.filter(([word]) => word).map(([word, field]) => html`<${Chip} key=${word} title=${field}>${word}<//>`);
}

function Actions({ info, again }) {
  const { name, mirror, sealed, subjects = [] } = info.config;
  const locked = sealed ? "The stream is sealed." : "";
  const actions = [
    { verb: "Publish", no: mirror ? "A mirror takes its messages from its upstream." : locked || (subjects.length ? whyNone(...subjects) : "It takes messages of other streams only."), act: () => publishTo(info, again) },
    { verb: "Edit", subject: `$JS.API.STREAM.UPDATE.${name}`, no: "", act: () => editStream(info, again) },
    { verb: "Step down", subject: `$JS.API.STREAM.LEADER.STEPDOWN.${name}`, no: info.cluster?.replicas?.length ? "" : "There is no other replica.", act: () => stepDown(name, again) },
    { verb: "Purge", subject: `$JS.API.STREAM.PURGE.${name}`, no: locked || (info.config.deny_purge ? "The configuration denies it." : ""), danger: true, act: () => purge(info, again) },
    { verb: "Delete", subject: `$JS.API.STREAM.DELETE.${name}`, no: "", danger: true, act: () => remove(info) },
  ];
  return html`<div class="actions">
    ${actions.map(({ verb, subject, no, danger, act }) => {
      return html`<${Act} key=${verb} class=${danger ? "danger" : ""} why=${no || (subject ? whyNot(subject) : "")} act=${act}>${verb}<//>`;
    })}
  </div>`;
}

function stepDown(name, again) {
  confirm({
    title: `Another leader for ${name}`,
    explain: "The leader hands over to another replica that is current. Publishers wait some milliseconds.",
    verb: "Step down",
    act: () => js(`STREAM.LEADER.STEPDOWN.${name}`).then(again),
    done: `${name} has another leader.`,
  });
}

function purge(info, again) {
  const { name } = info.config;
  const subject = route.value.query.get("subject") ?? "";
  const what = subject ? html`all messages of <code>${subject}</code>` : html`all <b>${exact(info.state.messages)}</b> messages (${bytes(info.state.bytes)})`;
  confirm({
    title: `Purge ${name}`,
    explain: html`<p>This removes ${what} for good. Consumers go on behind the last sequence, ${exact(info.state.last_seq)}.</p>`,
    name,
    verb: "Purge",
    act: async () => {
      const { purged } = await js(`STREAM.PURGE.${name}`, subject ? { filter: subject } : {}, 60_000);
      tell(`${exact(purged)} messages were removed from ${name}.`);
      await again();
    },
  });
}

function remove(info) {
  const { name } = info.config;
  confirm({
    title: `Delete ${name}`,
    explain: html`<p>This deletes the stream with its <b>${exact(info.state.messages)}</b> messages (${bytes(info.state.bytes)}) and
      <b>${exact(info.state.consumer_count)}</b> consumers, on all servers, for good.</p>`,
    name,
    verb: "Delete",
    act: async () => {
      await js(`STREAM.DELETE.${name}`, "", 30_000);
      go("streams");
    },
    done: `${name} is deleted.`,
  });
}

function State({ info, rates }) {
  const { state, config, cluster } = info;
  const { first_seq: first, last_seq: last } = exactly(info).state;
  const group = groupOf(info);
  return html`<${Figures}>
      <${Figure} name="Messages" value=${exact(state.messages)} metric="state.messages" />
      <${Figure} name="Size" value=${bytes(state.bytes)} metric="state.bytes" />
      <${Figure} name="Rate" value=${`${count(rates.seq)}/s`} metric="growth of state.last_seq" />
      <${Figure} name="Subjects" value=${exact(state.num_subjects ?? 0)} metric="state.num_subjects" />
      <${Figure} name="Consumers" value=${exact(state.consumer_count)} metric="state.consumer_count" />
      <${Figure} name="Deleted inside" value=${exact(state.num_deleted ?? 0)} metric="state.num_deleted" />
    <//>
    <div class="columns">
      <section class="panel"><h2>Sequences</h2><${Terms} rows=${[
        ["First", html`${exact(first)} <span class="faint">${time(state.first_ts)}</span>`],
        ["Last", html`${exact(last)} <span class="faint">${time(state.last_ts)}, ${ago(state.last_ts)}</span>`],
        ["Created", time(info.created)],
      ]} /></section>
      <section class="panel"><h2>Limits</h2><${Limits} state=${state} config=${config} /></section>
      <section class="panel"><h2>Replicas</h2>
        ${cluster
          ? html`<p><${Replicas} group=${group} /></p><${Terms} rows=${[
              ["Leader since", cluster.leader_since ? `${time(cluster.leader_since)}, ${ago(cluster.leader_since)}` : undefined],
              ...group.replicas.map((one) => [one.name, `${one.offline ? "offline" : one.current ? "current" : "not current"}, ${exact(one.lag)} entries behind, heard ${nanoseconds(one.silent * 1e9)} ago`]),
              ["Raft group", cluster.raft_group],
            ]} />`
          : html`<p>One server, no cluster.</p>`}
      </section>
      ${(info.mirror || info.sources?.length) &&
      html`<section class="panel"><h2>${info.mirror ? "Mirrors" : "Takes from"}</h2>
        ${[info.mirror, ...(info.sources ?? [])].filter(Boolean).map((one) => html`<${Terms} key=${one.name} rows=${[
          ["Stream", one.external ? `${one.name} (${one.external.api})` : html`<a href=${to("streams", one.name)}>${one.name}</a>`],
          ["Lag", lagOf(one) === undefined ? "not known" : `${exact(lagOf(one))} messages`],
          ["Last word", one.active === undefined || one.active < 0 ? "never" : `${nanoseconds(one.active)} ago`],
          ["Trouble", one.error?.description],
        ]} />`)}</section>`}
      ${info.alternates?.length > 1 &&
      html`<section class="panel"><h2>Read as well from</h2><ul>${info.alternates.map((one) => html`<li key=${one.name}>${one.name === info.config.name ? one.name : html`<a href=${to("streams", one.name)}>${one.name}</a>`} <span class="faint">${one.domain ?? one.cluster}</span></li>`)}</ul></section>`}
    </div>`;
}

function Limits({ state, config }) {
  const rows = [
    ["Messages", config.max_msgs, state.messages, exact],
    ["Size", config.max_bytes, state.bytes, bytes],
    ["Consumers", config.max_consumers, state.consumer_count, exact],
  ];
  return html`<${Terms} rows=${[
    ...rows.map(([name, most, now, show]) => [name, most > 0 ? html`<span class="usage"><meter min="0" max="1" high="0.85" optimum="0" value=${Math.min(1, now / most)}></meter> ${show(now)} of ${show(most)}</span>` : "none"]),
    ["Age", limit(config.max_age, nanoseconds)],
    ["Per subject", limit(config.max_msgs_per_subject, exact)],
    ["Message size", limit(config.max_msg_size, bytes)],
    ["When full", config.discard === "new" ? "new messages are refused" : "the oldest messages go"],
    ["Duplicates seen for", nanoseconds(config.duplicate_window)],
  ]} />`;
}

function Configuration({ info, again }) {
  const text = stringify(exactly(info).config, 2);
  const subject = `$JS.API.STREAM.UPDATE.${info.config.name}`;
  return html`<div class="bar"><${Act} why=${whyNot(subject)} act=${() => editStream(info, again)}>Edit<//>
    <button type="button" onClick=${() => navigator.clipboard.writeText(text).then(() => tell("Copied."))}>Copy</button></div>
    <pre class="panel" tabindex="0" aria-label="Configuration">${text}</pre>`;
}
