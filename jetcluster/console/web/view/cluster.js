// The cluster, live: its servers, who leads what and which replica lacks what, the links between servers and clusters.
import { html, useMemo, useState } from "../vendor/ui.js";
import { clusterState, groups, leafLinks, links } from "../cluster_state.js";
import { ClusterHistory } from "./cluster_history.js";
import { ago, bytes, count, exact, seconds } from "../format.js";
import { Silent, Stale, usePoll, useRates, Waiting } from "../part/poll.js";
import { figure, Table } from "../part/table.js";
import { Chip, Figure, Figures, Tabs } from "../part/words.js";
import { route, to } from "../route.js";

const LIVE_MS = 2000;
const GROUPS_MS = 5000;
const HEALTH = { good: "ok", warn: "not known", bad: "not healthy" };
const TABS = [
  ["servers", "Servers"],
  ["groups", "Streams and replicas"],
  ["links", "Links"],
  ["upstreams", "Mirrors and leaf links"],
  ["history", "History"],
];

export function Cluster() {
  const at = route.value.path[1] ?? "servers";
  return html`<h1>Cluster</h1>
    <${Tabs} label="Parts of the cluster" tabs=${TABS} at=${at} href=${(id) => to("cluster", id)} />
    ${at === "servers" && html`<${Servers} />`} ${at === "groups" && html`<${Groups} />`} ${at === "links" && html`<${Links} />`}
    ${at === "upstreams" && html`<${Upstreams} />`} ${at === "history" && html`<${ClusterHistory} />`}`;
}

function useServers() {
  const poll = usePoll(clusterState, LIVE_MS);
  const values = useMemo(() => {
    if (!poll.data) return null;
    const found = {};
    for (const server of poll.data.servers) {
      for (const [name, value] of Object.entries(server.counters)) found[`${server.id} ${name}`] = value;
    }
    return found;
  }, [poll.data]);
  const rates = useRates(poll.data?.now ?? 0, values);
  return { poll, rates };
}

function Servers() {
  const { poll, rates } = useServers();
  if (!poll.data) return html`<${Waiting} poll=${poll} what="the servers" />`;
  const { servers, meta, expected } = poll.data;
  const present = servers.filter((one) => one.present);
  // A rate takes two looks: none yet is a dash, as in the rows.
  const sum = (name) => present.map((one) => rates[`${one.id} ${name}`]).reduce((total, one) => (one === undefined ? total : (total ?? 0) + one), undefined);
  const ill = servers.filter((one) => one.status === "bad");
  const unknown = servers.filter((one) => one.status === "warn");
  const rate = (server, name, show) => (server.present ? `${show(rates[`${server.id} ${name}`])}/s` : "–");

  const columns = [
    { id: "name", title: "Server", value: (one) => one.name, show: (one) => html`<b>${one.name}</b> ${one.isMeta && html`<${Chip} title="It leads the meta group, which places streams.">meta leader<//>`}` },
    {
      id: "health", title: "Health", hint: "HEALTHZ", value: (one) => `${one.status === "good" ? "ok" : "ill"} ${one.reasons.join(" ")}`,
      show: (one) => html`<${Chip} kind=${one.status} title="HEALTHZ status">${one.present ? HEALTH[one.status] : "absent"}<//> <span class="reason">${one.reasons.join("; ")}${one.silent ? `, last heard ${seconds(one.silent)} ago` : ""}</span>`,
    },
    { id: "in", title: "In", end: true, hint: "varz in_client_msgs per second", value: (one) => rates[`${one.id} in`] ?? 0, show: (one) => rate(one, "in", count) },
    { id: "out", title: "Out", end: true, hint: "varz out_client_msgs per second", value: (one) => rates[`${one.id} out`] ?? 0, show: (one) => rate(one, "out", count) },
    { id: "leads", title: "Leads", end: true, hint: "jsz streams_leader of streams", value: (one) => one.leads ?? -1, show: (one) => (one.streams === undefined ? "–" : `${exact(one.leads)} of ${exact(one.streams)}`) },
    figure("connections", "Connections", "varz connections", (one) => one.connections),
    { id: "cpu", title: "CPU", end: true, hint: "varz cpu, 100 % is one core", value: (one) => one.cpu ?? -1, show: (one) => (one.cpu === undefined ? "–" : `${count(one.cpu)} %`) },
    figure("memory", "Memory", "varz mem", (one) => one.memory, bytes),
    {
      id: "disk", title: "Stored", end: true, hint: "jsz storage, of config.max_storage", value: (one) => one.disk ?? -1,
      show: (one) => (one.disk === undefined ? "–" : html`<${Usage} used=${one.disk} of=${one.diskLimit} />`),
    },
    {
      id: "free", title: "Free disk", end: true, hint: "jsz disk.free, of disk.size", value: (one) => one.diskFree ?? -1,
      show: (one) => (one.diskFree === undefined ? "–" : html`<${Free} free=${one.diskFree} of=${one.diskSize} />`),
    },
    { id: "version", title: "Version", hint: "varz jetcluster.version", value: (one) => one.version ?? "", show: (one) => html`<span title=${one.loops}>${one.version ?? "–"}</span>` },
    { id: "uptime", title: "Up", end: true, hint: "varz uptime", value: (one) => one.uptime ?? "", show: (one) => one.uptime ?? "–" },
  ];
  return html`<${Stale} poll=${poll} />
    <${Figures}>
      <${Figure} name="Servers" value=${`${present.length} of ${expected}`} metric="jsz meta_cluster.cluster_size" kind=${present.length < expected ? "bad" : ""} />
      <${Figure} name="Not healthy" value=${ill.length} metric="healthz" kind=${ill.length ? "bad" : ""} />
      ${unknown.length > 0 && html`<${Figure} name="Not all is known" value=${unknown.length} metric="servers that left a question unanswered" kind="warn" />`}
      <${Figure} name="Meta leader" value=${meta?.leader || "none"} metric="jsz meta_cluster.leader" kind=${meta?.leader ? "" : "bad"} />
      <${Figure} name="Messages in" value=${`${count(sum("in"))}/s`} metric="varz in_client_msgs, all servers" />
      <${Figure} name="Messages out" value=${`${count(sum("out"))}/s`} metric="varz out_client_msgs, all servers" />
      <${Figure} name="Bytes in" value=${`${bytes(sum("inBytes"))}/s`} metric="varz in_client_bytes, all servers" />
      <${Figure} name="Bytes out" value=${`${bytes(sum("outBytes"))}/s`} metric="varz out_client_bytes, all servers" />
      <${Figure} name="API requests" value=${`${count(sum("api"))}/s`} metric="jsz api.total, all servers" />
    <//>
    <${Table} label="servers" columns=${columns} rows=${servers} keyOf=${(one) => one.id} sort="name" search=${servers.length > 8} />`;
}

function Usage({ used, of }) {
  if (!of) return bytes(used);
  const share = Math.min(1, used / of);
  return html`<span class="usage" title=${`${bytes(used)} of ${bytes(of)}`}><meter min="0" max="1" high="0.85" optimum="0" value=${share}></meter> ${bytes(used)}</span>`;
}

const LITTLE = 0.1;
/** A share of free disk that is worth a look. */

function Free({ free, of }) {
  const words = of ? `${bytes(free)} of ${bytes(of)} are free` : `${bytes(free)} are free`;
  return html`<span class=${of && free < LITTLE * of ? "reason" : ""} title=${words}>${bytes(free)}</span>`;
}

/** The replicas of a group: each with what it lacks. `heard` false: the leader that others name has not answered. */
export function Replicas({ group }) {
  const { leader, heard = true } = group;
  return html`<span class="replicas">
    ${leader
      ? html`<${Chip} kind=${heard ? "lead" : "warn"} title=${heard ? "cluster.leader" : "cluster.leader as others name it: it has not answered"}>${leader}${heard ? "" : " ?"}<//>`
      : html`<${Chip} kind="bad" title="cluster.leader">no leader<//>`}
    ${group.replicas.map((one) => html`<${Chip} key=${one.name} kind=${one.offline ? "bad" : one.current ? "good" : "warn"} title=${lacks(one)}>
      ${one.name}${one.offline ? ` ${seconds(one.silent)}` : one.catching ? ` ${progress(one.catching)}` : one.lag ? ` −${count(one.messages ?? one.lag)}${one.seconds ? `, ${seconds(one.seconds)}` : ""}` : ""}<//>`)}
  </span>`;
}

function lacks(replica) {
  const words = [replica.offline ? "offline" : replica.current ? "current" : "behind"];
  if (replica.catching) words.push(`it fetches the whole state: ${bytes(replica.catching.bytes)} of ${bytes(replica.catching.total_bytes)} in ${seconds(replica.catching.seconds)}`);
  words.push(`${exact(replica.lag)} entries behind`);
  if (replica.messages !== undefined) words.push(`${exact(replica.messages)} messages, ${seconds(replica.seconds ?? 0)}`);
  return [...words, `last heard ${seconds(replica.silent)} ago`].join(", ");
}

function progress({ bytes: done, total_bytes: total }) {
  return total ? `${Math.floor((100 * done) / total)} %` : "catching up";
}

function Groups() {
  const [progress, setProgress] = useState("");
  const poll = usePoll(() => groups((got, total) => setProgress(`: ${exact(got)} of ${exact(total)} of a server`)), GROUPS_MS);
  if (!poll.data) return html`<${Waiting} poll=${poll} what=${`the groups${progress}`} />`;
  const { rows, silent, short } = poll.data;
  const leaders = new Map();
  for (const one of rows) leaders.set(one.leader || "none", (leaders.get(one.leader || "none") ?? 0) + 1);
  const unheard = rows.filter((one) => one.leader && !one.heard).length;
  const columns = [
    { id: "stream", title: "Stream", value: (one) => one.stream, show: (one) => html`<b>${one.stream}</b>` },
    { id: "account", title: "Account", value: (one) => one.account },
    { id: "replicas", title: "Leader and replicas", value: (one) => `${one.leader || "no leader"} ${one.replicas.map((replica) => replica.name).join(" ")}`, show: (one) => html`<${Replicas} group=${one} />` },
    { id: "behind", title: "Behind", end: true, hint: "replicas that are not current", value: rank, show: (one) => html`<${Behind} one=${one} />` },
    figure("lag", "Lag", "entries that the slowest replica lacks", (one) => one.lag),
    {
      id: "late", title: "Late", end: true, hint: "jsz lag_seconds: age of the first message that the slowest replica lacks",
      value: (one) => one.late ?? -1, show: (one) => (one.late === 0 ? "0" : seconds(one.late)),
    },
    figure("messages", "Messages", "state.messages", (one) => one.messages),
    figure("bytes", "Size", "state.bytes", (one) => one.bytes, bytes),
    figure("consumers", "Consumers", "state.consumer_count", (one) => one.consumers),
    { id: "last", title: "Last message", end: true, hint: "state.last_ts", value: (one) => one.last ?? "", show: (one) => ago(one.last) },
  ];
  return html`<${Stale} poll=${poll} />
    <${Silent} names=${silent} what="streams with all their replicas there are missing here, and of those that it leads the others tell." />
    ${short.length > 0 && html`<p class="notice warn" role="alert">Not all streams of ${short.join(", ")} have come.</p>`}
    <${Figures}>
      <${Figure} name="Streams" value=${exact(rows.length)} metric="jsz account_details.stream_detail" />
      <${Figure} name="Without a leader" value=${exact(leaders.get("none") ?? 0)} metric="jsz cluster.leader" kind=${leaders.get("none") ? "bad" : ""} />
      ${unheard > 0 && html`<${Figure} name="Leader does not answer" value=${exact(unheard)} metric="jsz cluster.leader, of servers without an answer" kind="warn" />`}
      <${Figure} name="With a replica behind" value=${exact(rows.filter((one) => one.behind).length)} metric="jsz cluster.replicas" kind=${rows.some((one) => one.behind) ? "warn" : ""} />
      ${[...leaders].filter(([name]) => name !== "none").sort().map(([name, led]) => html`<${Figure} key=${name} name=${`${name} leads`} value=${exact(led)} metric="jsz cluster.leader" />`)}
    <//>
    <${Table} label="streams" columns=${columns} rows=${rows} keyOf=${(one) => `${one.account}/${one.stream}`} sort="-behind" empty="There are no streams." />`;
}

/** The order of trouble: no leader, not known, then how many are behind. */
function rank(one) {
  return one.leader ? (one.heard ? one.behind : 50) : 100;
}

function Behind({ one }) {
  if (!one.leader) return html`<${Chip} kind="bad" title="cluster.leader">no leader<//>`;
  if (!one.heard) return html`<${Chip} kind="warn" title="its leader has not answered">not known<//>`;
  return one.behind ? html`<${Chip} kind="warn" title="replicas that are not current">${one.behind}<//>` : "0";
}

function Links() {
  const poll = usePoll(links, LIVE_MS);
  if (!poll.data) return html`<${Waiting} poll=${poll} what="the links" />`;
  const { rows, silent } = poll.data;
  const names = [...new Set([...rows.flatMap((one) => [one.from, one.to]), ...silent])].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const of = (from, end) => rows.find((one) => one.from === from && one.to === end);
  const columns = [
    { id: "from", title: "From", value: (one) => one.from },
    { id: "to", title: "To", value: (one) => one.to },
    figure("rtt", "Round trip", "routez rtt", (one) => one.rtt, seconds),
    figure("pending", "Waiting", "routez pending_size", (one) => one.pending, bytes),
    figure("in", "Received", "routez in_bytes", (one) => one.inBytes, bytes),
    figure("out", "Sent", "routez out_bytes", (one) => one.outBytes, bytes),
    { id: "uptime", title: "Up", end: true, hint: "routez uptime", value: (one) => one.uptime },
  ];
  return html`<${Stale} poll=${poll} /><${Silent} names=${silent} what="only the other ends of its links tell." />
    ${names.length > 1 && names.length <= 16 &&
    html`<div class="scroll"><table class="matrix"><caption>Round trips</caption>
      <thead><tr><th scope="col">from \\ to</th>${names.map((name) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead>
      <tbody>${names.map((from) => html`<tr key=${from}><th scope="row">${from}</th>
        ${names.map((end) => {
          const found = of(from, end);
          const [kind, words] = from === end ? ["self", ""] : found ? ["", seconds(found.rtt)] : silent.includes(from) ? ["faint", "not known"] : ["bad", "no link"];
          return html`<td key=${end} class=${kind}>${words}</td>`;
        })}</tr>`)}</tbody></table></div>`}
    <${Table} label="links" columns=${columns} rows=${rows} keyOf=${(one) => `${one.from} ${one.to} ${one.uptime}`} sort="from" empty="This server has no cluster." />`;
}

async function upstreams() {
  const [found, leafs] = await Promise.all([groups(), leafLinks()]);
  const rows = found.rows.flatMap((group) => group.upstreams.map((one) => ({ ...one, group })));
  return { rows, leafs: leafs.rows, silent: [...new Set([...found.silent, ...leafs.silent])] };
}

/** Messages that the upstream has more; nobody knows before it is heard. */
export function lagOf({ active, lag }) {
  return active >= 0 ? (lag ?? 0) : undefined;
}

function Upstreams() {
  const poll = usePoll(upstreams, GROUPS_MS);
  if (!poll.data) return html`<${Waiting} poll=${poll} what="the mirrors" />`;
  const columns = [
    { id: "stream", title: "Stream", value: (one) => one.group.stream, show: (one) => html`<b>${one.group.stream}</b>` },
    { id: "account", title: "Account", value: (one) => one.group.account },
    { id: "upstream", title: "Mirrors or sources", value: (one) => `${one.name} ${one.external?.api ?? ""}` },
    figure("lag", "Lag", "messages that the upstream has more, by its last word", lagOf),
    { id: "active", title: "Last word", end: true, hint: "time since the upstream was heard", value: (one) => (one.active < 0 ? Number.MAX_SAFE_INTEGER : (one.active ?? 0)), show: (one) => (one.active === undefined || one.active < 0 ? html`<${Chip} kind="bad" title="active is -1">never<//>` : seconds(one.active / 1e9)) },
    { id: "error", title: "Trouble", value: (one) => one.error?.description ?? "" },
  ];
  const leafColumns = [
    { id: "server", title: "Server", value: (one) => one.server },
    { id: "name", title: "Remote", value: (one) => one.name ?? "" },
    { id: "account", title: "Account", value: (one) => one.account ?? "" },
    { id: "address", title: "Address", value: (one) => `${one.ip}:${one.port}` },
    figure("rtt", "Round trip", "leafz rtt", (one) => one.rttSeconds, seconds),
    figure("in", "Received", "leafz in_msgs", (one) => one.in_msgs),
    figure("out", "Sent", "leafz out_msgs", (one) => one.out_msgs),
    figure("subscriptions", "Subscriptions", "leafz subscriptions", (one) => one.subscriptions),
  ];
  return html`<${Stale} poll=${poll} /><${Silent} names=${poll.data.silent} what="mirrors and sources that it leads, and its leaf links, are missing here." />
    <h2>Mirrors and sources</h2>
    <${Table} label="upstreams" columns=${columns} rows=${poll.data.rows} keyOf=${(one) => `${one.group.account}/${one.group.stream}/${one.name}`} sort="-active" empty="No stream has a mirror or a source." />
    <h2>Leaf links</h2>
    <${Table} label="leaf links" columns=${leafColumns} rows=${poll.data.leafs} keyOf=${(one) => `${one.server} ${one.id ?? one.port}`} sort="server" empty="There are no leaf links." />`;
}
