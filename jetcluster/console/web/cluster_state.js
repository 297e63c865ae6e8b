// What all servers say of themselves, put together: the servers that are there and those that should be. A question that a
// server does not answer leaves a gap, never a zero.
import { sys } from "./session.js";
import { fromGo } from "./format.js";

const PAGE_STREAMS = 2000;
/** Streams of one answer of a server, which may have 8 MiB and is to come soon. */
const MOST_TRIES = 3;
const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });

/** Whom else the meta group has, beside those of `answers` of JSZ, and who has fallen silent: names. */
function missing(answers, meta) {
  const here = new Set(answers.map((one) => one.server.name));
  const members = [meta?.leader, ...(meta?.replicas ?? []).map((one) => one.name)].filter(Boolean);
  return [...new Set([...answers.silent, ...members])].filter((name) => !here.has(name)).sort(byName);
}

/** The meta group as its leader knows it, or anybody. */
function metaOf(answers) {
  const known = answers.filter((one) => one.data.meta_cluster);
  const best = known.find((one) => one.data.meta_cluster.leader === one.server.name) ?? known[0];
  return best?.data.meta_cluster;
}

/**
 * Returns { now, servers: [...], meta, expected }; `now` is of `performance.now()`. A server: { id, name, present, version,
 * health: [reasons], status, cpu, memory, disk, diskLimit, diskFree, diskSize, connections, uptime, leads, streams, meta,
 * counters }; what it did not tell is undefined. One that a leader waits for and that does not answer is `present: false` with
 * `silent` in seconds.
 */
export async function clusterState() {
  const [states, health, js] = await Promise.all([sys("VARZ"), sys("HEALTHZ", { details: true }), sys("JSZ")]);
  const of = (answers) => new Map(answers.map((one) => [one.server.id, one]));
  const [stateOf, healthOf, jsOf] = [of(states), of(health), of(js)];
  const meta = metaOf(js);
  const all = new Map([...states, ...health, ...js].map((one) => [one.server.id, one.server]));
  const servers = [...all].map(([id, server]) => described(server, stateOf.get(id)?.data, healthOf.get(id), jsOf.get(id)?.data, meta));
  const absent = new Map((meta?.replicas ?? []).map((peer) => [peer.name, peer]));
  for (const name of new Set([...absent.keys(), ...states.silent])) {
    if (servers.some((one) => one.name === name)) continue;
    const { peer = name, active = 0, offline } = absent.get(name) ?? {};
    const reasons = [offline ? "the meta leader has lost it" : "it does not answer"];
    servers.push({ id: peer, name, present: false, silent: active / 1e9, status: "bad", reasons, counters: {}, tags: [] });
  }
  servers.sort((a, b) => byName(a.name, b.name));
  return { now: performance.now(), servers, meta, expected: Math.max(meta?.cluster_size ?? 0, servers.length) };
}

/** A server by what it has answered; undefined: it has not. */
function described(server, data, health, jetstream, meta) {
  const told = verdict(health);
  const gaps = [data ? "" : "VARZ", jetstream ? "" : "JSZ"].filter(Boolean).map((kind) => `no answer to ${kind}`);
  return {
    id: server.id,
    name: server.name,
    present: true,
    cluster: server.cluster ?? "",
    tags: server.tags ?? data?.tags ?? [],
    version: data?.jetcluster?.version ?? data?.version,
    loops: data?.jetcluster?.loops ?? "",
    status: gaps.length && told.status === "good" ? "warn" : told.status,
    reasons: [...told.reasons, ...gaps],
    cpu: data?.cpu,
    cores: data?.cores,
    memory: data?.mem,
    disk: jetstream?.storage,
    diskLimit: jetstream?.config?.max_storage,
    diskFree: jetstream?.disk?.free,
    diskSize: jetstream?.disk?.size,
    connections: data?.connections,
    slow: data?.slow_consumers,
    uptime: data?.uptime,
    streams: jetstream && (jetstream.streams ?? 0),
    leads: jetstream && (jetstream.streams_leader ?? 0),
    isMeta: meta?.leader === server.name,
    counters: {
      in: data?.in_client_msgs ?? data?.in_msgs,
      out: data?.out_client_msgs ?? data?.out_msgs,
      inBytes: data?.in_client_bytes ?? data?.in_bytes,
      outBytes: data?.out_client_bytes ?? data?.out_bytes,
      api: jetstream && (jetstream.api?.total ?? 0),
    },
  };
}

function verdict(answer) {
  if (!answer) return { status: "warn", reasons: ["no answer to HEALTHZ: its health is not known"] };
  const { status, error, errors } = answer.data;
  const reasons = [error, answer.error?.description, ...(errors ?? []).map((one) => one.error ?? one.description)].filter(Boolean);
  if (status === "ok" && !reasons.length) return { status: "good", reasons: [] };
  return { status: "bad", reasons: reasons.length ? [...new Set(reasons)] : [status ?? "unknown"] };
}

/** Links between servers: { rows: [{ from, to, rtt (seconds), pending, in, out, idle }], silent }, as each end sees it. */
export async function links() {
  const answers = await sys("ROUTEZ");
  const rows = answers.flatMap(({ server, data }) =>
    (data.routes ?? []).map((route) => ({
      from: server.name,
      to: route.remote_name ?? route.remote_id,
      rtt: fromGo(route.rtt),
      pending: route.pending_size ?? 0,
      inBytes: route.in_bytes,
      outBytes: route.out_bytes,
      idle: fromGo(route.idle),
      uptime: route.uptime,
    })),
  );
  return { rows, silent: answers.silent };
}

/** Leaf links of all servers: { rows, silent }. */
export async function leafLinks() {
  const answers = await sys("LEAFZ");
  const rows = answers.flatMap(({ server, data }) =>
    (data.leafs ?? []).map((leaf) => ({ server: server.name, ...leaf, rttSeconds: fromGo(leaf.rtt) })),
  );
  return { rows, silent: answers.silent };
}

/** JSZ with all streams of each server, which come in pages: { answers, short: [names of servers that lack some] }. */
async function allStreams(seen) {
  const body = { accounts: true, streams: true, lag: true, limit: PAGE_STREAMS, stream_limit: PAGE_STREAMS };
  for (let tries = 1; ; tries += 1) {
    const answers = await sys("JSZ", body, { large: true });
    const totals = new Map(answers.map((one) => [one.server.id, one.data.stream_total ?? 0]));
    const most = Math.max(0, ...totals.values());
    const details = new Map(answers.map((one) => [one.server.id, [...(one.data.account_details ?? [])]]));
    let still = true;
    for (let offset = PAGE_STREAMS; offset < most; offset += PAGE_STREAMS) {
      seen(offset, most);
      for (const { server, data } of await sys("JSZ", { ...body, stream_offset: offset }, { large: true })) {
        still = still && data.stream_total === totals.get(server.id);
        details.get(server.id)?.push(...(data.account_details ?? []));
      }
    }
    // One may have slipped from a page to that before it when something was deleted; what changes all the time is shown as it came.
    if (!still && tries < MOST_TRIES) continue;
    const told = answers.map((one) => ({ ...one, accounts: details.get(one.server.id) }));
    const short = told.filter((one) => one.error || listed(one.accounts) < totals.get(one.server.id)).map((one) => one.server.name);
    return { answers: Object.assign(told, { silent: answers.silent }), short };
  }
}

const listed = (accounts) => accounts.reduce((sum, one) => sum + (one.stream_detail?.length ?? 0), 0);

/**
 * The groups, each as its leader sees it: { rows: [{ account, stream, leader, heard, replicas: [{ name, current, lag, silent }],
 * messages, bytes, consumers, upstreams }], silent, short }. `heard`: the leader itself has told; if not, what it alone knows is
 * undefined. `silent` servers have not answered, `short` ones not with all of their streams. `seen(got, total)` after a page.
 */
export async function groups(seen = () => {}) {
  const { answers, short } = await allStreams(seen);
  const found = new Map();
  const catching = new Map();
  for (const { server, data, accounts } of answers) {
    for (const pull of data.catching_up ?? []) catching.set(`${pull.account}\n${pull.stream}\n${server.name}`, pull);
    for (const account of accounts) {
      for (const stream of account.stream_detail ?? []) {
        const key = `${account.name}\n${stream.name}`;
        const leads = !stream.cluster || stream.cluster.leader === server.name;
        const known = found.get(key);
        if (known && !leads && (known.leader || !stream.cluster.leader)) continue;
        found.set(key, grouped(account.name, stream, leads, server.name));
      }
    }
  }
  if (catching.size) {
    for (const group of found.values()) {
      for (const replica of group.replicas) replica.catching = catching.get(`${group.account}\n${group.stream}\n${replica.name}`);
    }
  }
  return { rows: [...found.values()], silent: missing(answers, metaOf(answers)), short };
}

function grouped(account, stream, heard, server) {
  const { cluster, state } = stream;
  const replicas = (heard ? cluster?.replicas : null) ?? [];
  const told = (value) => (heard ? value : undefined);
  return {
    account,
    stream: stream.name,
    leader: cluster ? (cluster.leader ?? "") : server,
    heard,
    replicas: replicas.map((one) => ({ name: one.name, current: one.current, offline: Boolean(one.offline), lag: one.lag ?? 0, messages: one.lag_messages, seconds: one.lag_seconds, silent: (one.active ?? 0) / 1e9 })),
    lag: told(Math.max(0, ...replicas.map((one) => one.lag ?? 0))),
    late: told(Math.max(0, ...replicas.map((one) => one.lag_seconds ?? 0))),
    behind: told(replicas.filter((one) => !one.current || one.offline).length),
    messages: state.messages,
    bytes: state.bytes,
    last: state.last_ts,
    consumers: state.consumer_count,
    upstreams: [stream.mirror, ...(stream.sources ?? [])].filter(Boolean),
  };
}
