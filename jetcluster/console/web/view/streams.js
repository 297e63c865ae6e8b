// The streams of the account: the list, and the page of one of them.
import { html, useMemo, useState } from "../vendor/ui.js";
import { ago, bytes, count, exact } from "../format.js";
import { Act } from "../part/act.js";
import { Stale, Unanswered, usePoll, useRates, Waiting } from "../part/poll.js";
import { figure, Table } from "../part/table.js";
import { Chip, Figure, Figures } from "../part/words.js";
import { route, to } from "../route.js";
import { jsAll, whyNone } from "../session.js";
import { Replicas } from "./cluster.js";
import { Consumer } from "./consumer.js";
import { Stream } from "./stream.js";
import { createStream } from "./stream_form.js";

const LIVE_MS = 5000;
const SLOW_MS = 30_000;
const LIVE_UP_TO = 500;
/** Streams: longer lists are fetched less often, as they are some hundred kilobytes. */

export function Streams() {
  const [, name, part, consumer] = route.value.path;
  if (part === "consumers" && consumer) return html`<${Consumer} key=${`${name} ${consumer}`} stream=${name} name=${consumer} />`;
  return name ? html`<${Stream} key=${name} name=${name} />` : html`<${List} />`;
}

/** A stream's info as `Replicas` and tables want it. */
export function groupOf(info) {
  const replicas = info.cluster?.replicas ?? [];
  return {
    leader: info.cluster ? info.cluster.leader : "this server",
    replicas: replicas.map((one) => ({ name: one.name, current: one.current, offline: Boolean(one.offline), lag: one.lag ?? 0, silent: (one.active ?? 0) / 1e9 })),
  };
}

export function kindOf(name) {
  return name.startsWith("KV_") ? "key-value bucket" : name.startsWith("OBJ_") ? "object bucket" : "";
}

const MOST_SUBJECTS = 20;

/** What a list shows of a stream: the rest of 50,000 infos is not kept. */
function listed({ config, state, cluster }) {
  const { name, subjects = [], mirror, sealed } = config;
  const more = subjects.length - MOST_SUBJECTS;
  const shown = more > 0 ? [...subjects.slice(0, MOST_SUBJECTS), `and ${more} more`] : subjects;
  return { config: { name, subjects: shown, mirror: mirror && { name: mirror.name }, sealed }, state, cluster };
}

function List() {
  const [every, setEvery] = useState(LIVE_MS);
  const [buckets, setBuckets] = useState(false);
  const [progress, setProgress] = useState("");
  const seen = (got, all) => got < all && setProgress(`: ${exact(got)} of ${exact(all)}`);
  const poll = usePoll(async () => {
    const found = await jsAll("STREAM.LIST", "streams", { pick: listed, seen });
    setEvery(found.length > LIVE_UP_TO ? SLOW_MS : LIVE_MS);
    return { now: performance.now(), found };
  }, every);
  const values = useMemo(() => poll.data && Object.fromEntries(poll.data.found.map((one) => [one.config.name, one.state.last_seq])), [poll.data]);
  const rates = useRates(poll.data?.now ?? 0, values);
  if (!poll.data) return html`<h1>Streams</h1><${Waiting} poll=${poll} what=${`the streams${progress}`} />`;
  const { found } = poll.data;
  const rows = buckets ? found : found.filter((one) => !kindOf(one.config.name));
  const total = (field) => found.reduce((sum, one) => sum + one.state[field], 0);
  const columns = [
    { id: "name", title: "Stream", value: (one) => one.config.name, show: (one) => html`<a href=${to("streams", one.config.name)}>${one.config.name}</a> ${one.config.mirror && html`<${Chip} title=${`mirrors ${one.config.mirror.name}`}>mirror<//>`}${one.config.sealed && html`<${Chip} title="config.sealed">sealed<//>`}` },
    { id: "subjects", title: "Subjects", value: (one) => (one.config.subjects ?? []).join(" "), show: (one) => html`<span class="clip mono" title=${(one.config.subjects ?? []).join("\n")}>${one.config.mirror ? `← ${one.config.mirror.name}` : (one.config.subjects ?? []).join(", ")}</span>` },
    { id: "rate", title: "Rate", end: true, hint: "growth of state.last_seq", value: (one) => rates[one.config.name] ?? 0, show: (one) => `${count(rates[one.config.name])}/s` },
    figure("messages", "Messages", "state.messages", (one) => one.state.messages),
    figure("bytes", "Size", "state.bytes", (one) => one.state.bytes, bytes),
    figure("subjectsCount", "Keys", "state.num_subjects", (one) => one.state.num_subjects ?? 0),
    figure("consumers", "Consumers", "state.consumer_count", (one) => one.state.consumer_count),
    { id: "last", title: "Last message", end: true, hint: "state.last_ts", value: (one) => one.state.last_ts ?? "", show: (one) => ago(one.state.last_ts) },
    { id: "replicas", title: "Leader and replicas", value: (one) => one.cluster?.leader ?? "", show: (one) => html`<${Replicas} group=${groupOf(one)} />` },
  ];
  return html`<h1>Streams</h1><${Stale} poll=${poll} />
    <${Figures}>
      <${Figure} name="Streams" value=${exact(found.length)} metric="STREAM.LIST total" />
      <${Figure} name="Messages" value=${exact(total("messages"))} metric="sum of state.messages" />
      <${Figure} name="Size" value=${bytes(total("bytes"))} metric="sum of state.bytes" />
      <${Figure} name="Consumers" value=${exact(total("consumer_count"))} metric="sum of state.consumer_count" />
    <//>
    <${Unanswered} names=${found.missing} />
    <${Table} label="streams" columns=${columns} rows=${rows} keyOf=${(one) => one.config.name} sort="name"
      empty=${found.length ? "Only buckets: show them with the box above." : "There are no streams yet."}>
      <label class="check"><input type="checkbox" checked=${buckets} onChange=${(event) => setBuckets(event.target.checked)} /> Buckets too</label>
      <${Act} class="primary" why=${whyNone("$JS.API.STREAM.CREATE.*")} act=${createStream}>New stream<//>
    <//>`;
}
