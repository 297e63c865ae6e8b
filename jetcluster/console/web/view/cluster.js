// The cluster, live: its servers, who leads what and which replica lacks what, the links between servers and clusters.
import { html, useMemo } from "../vendor/ui.js";
import { clusterState, groups, leafLinks, links } from "../cluster_state.js";
import { ClusterHistory } from "./cluster_history.js";
import { ago, bytes, count, exact, seconds } from "../format.js";
import { Stale, usePoll, useRates, Waiting } from "../part/poll.js";
import { Table } from "../part/table.js";
import { Chip, Figure, Figures, Tabs } from "../part/words.js";
import { route, to } from "../route.js";

const LIVE_MS = 2000;
const GROUPS_MS = 5000;
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
    for (const server of poll.data.servers) for (const [name, value] of Object.entries(server.counters)) found[`${server.id} ${name}`] = value;
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
  const ill = servers.filter((one) => one.status !== "good");
  const rate = (server, name, show) => (server.present ? `${show(rates[`${server.id} ${name}`])}/s` : "–");

  const columns = [
    { id: "name", title: "Server", value: (one) => one.name, show: (one) => html`<b>${one.name}</b> ${one.isMeta && html`<${Chip} title="It leads the meta group, which places streams.">meta leader<//>`}` },
    {
      id: "health", title: "Health", hint: "HEALTHZ", value: (one) => `${one.status === "good" ? "ok" : "ill"} ${one.reasons.join(" ")}`,
      show: (one) => html`<${Chip} kind=${one.status}>${one.present ? (one.status === "good" ? "ok" : "not healthy") : "absent"}<//> <span class="reason">${one.reasons.join("; ")}${one.silent ? `, last heard ${seconds(one.silent)} ago` : ""}</span>`,
    },
    { id: "in", title: "In", end: true, hint: "varz in_client_msgs per second", value: (one) => rates[`${one.id} in`] ?? 0, show: (one) => rate(one, "in", count) },
    { id: "out", title: "Out", end: true, hint: "varz out_client_msgs per second", value: (one) => rates[`${one.id} out`] ?? 0, show: (one) => rate(one, "out", count) },
    { id: "leads", title: "Leads", end: true, hint: "jsz streams_leader of streams", value: (one) => one.leads ?? -1, show: (one) => (one.present ? `${exact(one.leads ?? 0)} of ${exact(one.streams ?? 0)}` : "–") },
    { id: "connections", title: "Connections", end: true, hint: "varz connections", value: (one) => one.connections ?? -1, show: (one) => exact(one.connections) },
    { id: "cpu", title: "CPU", end: true, hint: "varz cpu, 100 % is one core", value: (one) => one.cpu ?? -1, show: (one) => (one.present ? `${count(one.cpu)} %` : "–") },
    { id: "memory", title: "Memory", end: true, hint: "varz mem", value: (one) => one.memory ?? -1, show: (one) => bytes(one.memory) },
    { id: "disk", title: "Disk", end: true, hint: "jsz storage of max_storage", value: (one) => one.disk ?? -1, show: (one) => (one.present ? html`<${Usage} used=${one.disk} of=${one.diskLimit} />` : "–") },
    { id: "version", title: "Version", value: (one) => one.version ?? "", show: (one) => html`<span title=${one.loops}>${one.version ?? "–"}</span>` },
    { id: "uptime", title: "Up", end: true, hint: "varz uptime", value: (one) => one.uptime ?? "", show: (one) => one.uptime ?? "–" },
  ];
  return html`<${Stale} poll=${poll} />
    <${Figures}>
      <${Figure} name="Servers" value=${`${present.length} of ${expected}`} metric="jsz meta_cluster.cluster_size" kind=${present.length < expected ? "bad" : ""} />
      <${Figure} name="Not healthy" value=${ill.length} metric="healthz" kind=${ill.length ? "bad" : ""} />
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

/** The replicas of a group: each with what it lacks. */
export function Replicas({ group }) {
  return html`<span class="replicas">
    ${group.leader ? html`<${Chip} kind="lead" title="leader">${group.leader}<//>` : html`<${Chip} kind="bad">no leader<//>`}
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
  const poll = usePoll(groups, GROUPS_MS);
  if (!poll.data) return html`<${Waiting} poll=${poll} what="the groups" />`;
  const rows = poll.data;
  const leaders = new Map();
  for (const one of rows) leaders.set(one.leader || "none", (leaders.get(one.leader || "none") ?? 0) + 1);
  const columns = [
    { id: "stream", title: "Stream", value: (one) => one.stream, show: (one) => html`<b>${one.stream}</b>` },
    { id: "account", title: "Account", value: (one) => one.account },
    { id: "replicas", title: "Leader and replicas", value: (one) => `${one.leader || "no leader"} ${one.replicas.map((replica) => replica.name).join(" ")}`, show: (one) => html`<${Replicas} group=${one} />` },
    { id: "behind", title: "Behind", end: true, hint: "replicas that are not current", value: (one) => one.behind + (one.leader ? 0 : 100), show: (one) => (one.leader ? (one.behind ? html`<${Chip} kind="warn">${one.behind}<//>` : "0") : html`<${Chip} kind="bad">no leader<//>`) },
    { id: "lag", title: "Lag", end: true, hint: "entries that the slowest replica lacks", value: (one) => one.lag, show: (one) => exact(one.lag) },
    { id: "late", title: "Late", end: true, hint: "jsz lag_seconds: age of the first message that the slowest replica lacks", value: (one) => one.late, show: (one) => (one.late ? seconds(one.late) : "0") },
    { id: "messages", title: "Messages", end: true, value: (one) => one.messages, show: (one) => exact(one.messages) },
    { id: "bytes", title: "Size", end: true, value: (one) => one.bytes, show: (one) => bytes(one.bytes) },
    { id: "consumers", title: "Consumers", end: true, value: (one) => one.consumers, show: (one) => exact(one.consumers) },
    { id: "last", title: "Last message", end: true, value: (one) => one.last ?? "", show: (one) => ago(one.last) },
  ];
  return html`<${Stale} poll=${poll} />
    <${Figures}>
      <${Figure} name="Streams" value=${exact(rows.length)} metric="jsz account_details.stream_detail" />
      <${Figure} name="Without a leader" value=${exact(leaders.get("none") ?? 0)} metric="jsz cluster.leader" kind=${leaders.get("none") ? "bad" : ""} />
      <${Figure} name="With a replica behind" value=${exact(rows.filter((one) => one.behind).length)} metric="jsz cluster.replicas" kind=${rows.some((one) => one.behind) ? "warn" : ""} />
      ${[...leaders].filter(([name]) => name !== "none").sort().map(([name, led]) => html`<${Figure} key=${name} name=${`${name} leads`} value=${exact(led)} metric="jsz cluster.leader" />`)}
    <//>
    <${Table} label="streams" columns=${columns} rows=${rows} keyOf=${(one) => `${one.account}/${one.stream}`} sort="-behind" empty="There are no streams." />`;
}

function Links() {
  const poll = usePoll(links, LIVE_MS);
  if (!poll.data) return html`<${Waiting} poll=${poll} what="the links" />`;
  const rows = poll.data;
  const names = [...new Set(rows.flatMap((one) => [one.from, one.to]))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const of = (from, end) => rows.find((one) => one.from === from && one.to === end);
  const columns = [
    { id: "from", title: "From", value: (one) => one.from },
    { id: "to", title: "To", value: (one) => one.to },
    { id: "rtt", title: "Round trip", end: true, hint: "routez rtt", value: (one) => one.rtt, show: (one) => seconds(one.rtt) },
    { id: "pending", title: "Waiting", end: true, hint: "routez pending_size", value: (one) => one.pending, show: (one) => bytes(one.pending) },
    { id: "in", title: "Received", end: true, value: (one) => one.inBytes, show: (one) => bytes(one.inBytes) },
    { id: "out", title: "Sent", end: true, value: (one) => one.outBytes, show: (one) => bytes(one.outBytes) },
    { id: "uptime", title: "Up", end: true, value: (one) => one.uptime },
  ];
  return html`<${Stale} poll=${poll} />
    ${names.length > 1 && names.length <= 16 &&
    html`<div class="scroll"><table class="matrix"><caption>Round trips</caption>
      <thead><tr><th scope="col">from \\ to</th>${names.map((name) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead>
      <tbody>${names.map((from) => html`<tr key=${from}><th scope="row">${from}</th>
        ${names.map((end) => {
          const found = of(from, end);
          return html`<td key=${end} class=${from === end ? "self" : found ? "" : "bad"}>${from === end ? "" : found ? seconds(found.rtt) : "no link"}</td>`;
        })}</tr>`)}</tbody></table></div>`}
    <${Table} label="links" columns=${columns} rows=${rows} keyOf=${(one) => `${one.from} ${one.to} ${one.uptime}`} sort="from" empty="This server has no cluster." />`;
}

async function upstreams() {
  const [found, leafs] = await Promise.all([groups(), leafLinks()]);
  return { found: found.flatMap((group) => group.upstreams.map((one) => ({ ...one, group }))), leafs };
}

function Upstreams() {
  const poll = usePoll(upstreams, GROUPS_MS);
  if (!poll.data) return html`<${Waiting} poll=${poll} what="the mirrors" />`;
  const columns = [
    { id: "stream", title: "Stream", value: (one) => one.group.stream, show: (one) => html`<b>${one.group.stream}</b>` },
    { id: "account", title: "Account", value: (one) => one.group.account },
    { id: "upstream", title: "Mirrors or sources", value: (one) => `${one.name} ${one.external?.api ?? ""}` },
    { id: "lag", title: "Lag", end: true, hint: "messages that the upstream has more, by its last word", value: (one) => one.lag ?? 0, show: (one) => exact(one.lag ?? 0) },
    { id: "active", title: "Last word", end: true, hint: "time since the upstream was heard", value: (one) => (one.active < 0 ? Number.MAX_SAFE_INTEGER : (one.active ?? 0)), show: (one) => (one.active === undefined || one.active < 0 ? html`<${Chip} kind="bad">never<//>` : seconds(one.active / 1e9)) },
    { id: "error", title: "Trouble", value: (one) => one.error?.description ?? "" },
  ];
  const leafColumns = [
    { id: "server", title: "Server", value: (one) => one.server },
    { id: "name", title: "Remote", value: (one) => one.name ?? "" },
    { id: "account", title: "Account", value: (one) => one.account ?? "" },
    { id: "address", title: "Address", value: (one) => `${one.ip}:${one.port}` },
    { id: "rtt", title: "Round trip", end: true, value: (one) => one.rttSeconds, show: (one) => seconds(one.rttSeconds) },
    { id: "in", title: "Received", end: true, value: (one) => one.in_msgs, show: (one) => exact(one.in_msgs) },
    { id: "out", title: "Sent", end: true, value: (one) => one.out_msgs, show: (one) => exact(one.out_msgs) },
    { id: "subscriptions", title: "Subscriptions", end: true, value: (one) => one.subscriptions, show: (one) => exact(one.subscriptions) },
  ];
  return html`<${Stale} poll=${poll} />
    <h2>Mirrors and sources</h2>
    <${Table} label="upstreams" columns=${columns} rows=${poll.data.found} keyOf=${(one) => `${one.group.account}/${one.group.stream}/${one.name}`} sort="-active" empty="No stream has a mirror or a source." />
    <h2>Leaf links</h2>
    <${Table} label="leaf links" columns=${leafColumns} rows=${poll.data.leafs} keyOf=${(one) => `${one.server} ${one.id ?? one.port}`} sort="server" empty="There are no leaf links." />`;
}
