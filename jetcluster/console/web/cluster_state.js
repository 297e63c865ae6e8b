// What all servers say of themselves, put together: the servers that are there and those that should be.
import { sys } from "./session.js";
import { fromGo } from "./format.js";

/**
 * Returns { now, servers: [...], meta, expected }. A server: { id, name, present, version, health: [reasons], status, cpu,
 * memory, disk, diskLimit, connections, uptime, leads, streams, meta, counters }. One that a leader waits for and that does
 * not answer is `present: false` with `silent` in seconds.
 */
export async function clusterState() {
  const [states, health, js] = await Promise.all([sys("VARZ"), sys("HEALTHZ", { details: true }), sys("JSZ")]);
  const healthOf = new Map(health.map((one) => [one.server.id, one]));
  const jsOf = new Map(js.map((one) => [one.server.id, one.data]));
  const meta = js.map((one) => one.data.meta_cluster).find((one) => one?.replicas) ?? js.find((one) => one.data.meta_cluster)?.data.meta_cluster;
  const servers = states.map(({ server, data }) => {
    const jetstream = jsOf.get(server.id) ?? {};
    return {
      id: server.id,
      name: server.name,
      present: true,
      cluster: server.cluster ?? "",
      tags: server.tags ?? data.tags ?? [],
      version: data.jetcluster?.version ?? data.version,
      loops: data.jetcluster?.loops ?? "",
      ...verdict(healthOf.get(server.id)),
      cpu: data.cpu,
      cores: data.cores,
      memory: data.mem,
      disk: jetstream.storage,
      diskLimit: jetstream.config?.max_storage,
      connections: data.connections,
      slow: data.slow_consumers,
      uptime: data.uptime,
      streams: jetstream.streams,
      leads: jetstream.streams_leader,
      groups: jetstream.ha_assets,
      apiErrors: jetstream.api?.errors,
      isMeta: meta?.leader === server.name,
      counters: {
        in: data.in_client_msgs ?? data.in_msgs,
        out: data.out_client_msgs ?? data.out_msgs,
        inBytes: data.in_client_bytes ?? data.in_bytes,
        outBytes: data.out_client_bytes ?? data.out_bytes,
        api: jetstream.api?.total ?? 0,
      },
    };
  });
  for (const peer of meta?.replicas ?? []) {
    if (servers.some((one) => one.name === peer.name)) continue;
    const silent = (peer.active ?? 0) / 1e9;
    servers.push({ id: peer.peer ?? peer.name, name: peer.name, present: false, silent, status: "bad", reasons: [peer.offline ? "the meta leader has lost it" : "it does not answer"], counters: {}, tags: [] });
  }
  servers.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  return { now: Date.now(), servers, meta, expected: meta?.cluster_size ?? servers.length };
}

function verdict(answer) {
  if (!answer) return { status: "bad", reasons: ["no answer about its health"] };
  const { status, error, errors } = answer.data;
  const reasons = [error, answer.error?.description, ...(errors ?? []).map((one) => one.error ?? one.description)].filter(Boolean);
  if (status === "ok" && !reasons.length) return { status: "good", reasons: [] };
  return { status: "bad", reasons: reasons.length ? [...new Set(reasons)] : [status ?? "unknown"] };
}

/** Links between servers: [{ from, to, rtt (seconds), pending, in, out, idle }], as each end sees it. */
export async function links() {
  const answers = await sys("ROUTEZ");
  return answers.flatMap(({ server, data }) =>
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
}

/** Leaf links of all servers. */
export async function leafLinks() {
  const answers = await sys("LEAFZ");
  return answers.flatMap(({ server, data }) =>
    (data.leafs ?? []).map((leaf) => ({ server: server.name, ...leaf, rttSeconds: fromGo(leaf.rtt) })),
  );
}

/**
 * The replicated groups, each as its leader sees it: [{ account, stream, leader, replicas: [{ name, current, lag, silent }],
 * messages, bytes, consumers, mirror, sources }], and those that no server leads.
 */
export async function groups() {
  const answers = await sys("JSZ", { accounts: true, streams: true, config: true, lag: true, limit: 1024 });
  const found = new Map();
  const catching = new Map();
  for (const { server, data } of answers) {
    for (const pull of data.catching_up ?? []) catching.set(`${pull.account}\n${pull.stream}\n${server.name}`, pull);
    for (const account of data.account_details ?? []) {
      for (const stream of account.stream_detail ?? []) {
        const key = `${account.name}\n${stream.name}`;
        const leads = !stream.cluster || stream.cluster.leader === server.name;
        if (found.has(key) && !leads) continue;
        found.set(key, grouped(account.name, stream, leads, server.name));
      }
    }
  }
  for (const group of found.values()) {
    for (const replica of group.replicas) replica.catching = catching.get(`${group.account}\n${group.stream}\n${replica.name}`);
  }
  return [...found.values()];
}

function grouped(account, stream, leads, server) {
  const { cluster, state, config } = stream;
  const replicas = (leads ? cluster?.replicas : null) ?? [];
  return {
    account,
    stream: stream.name,
    leader: leads ? (cluster?.leader ?? server) : "",
    since: cluster?.leader_since,
    replicas: replicas.map((one) => ({ name: one.name, current: one.current, offline: Boolean(one.offline), lag: one.lag ?? 0, messages: one.lag_messages, seconds: one.lag_seconds, silent: (one.active ?? 0) / 1e9 })),
    wanted: config?.num_replicas ?? replicas.length + 1,
    lag: Math.max(0, ...replicas.map((one) => one.lag ?? 0)),
    late: Math.max(0, ...replicas.map((one) => one.lag_seconds ?? 0)),
    behind: replicas.filter((one) => !one.current || one.offline).length,
    messages: state.messages,
    bytes: state.bytes,
    last: state.last_ts,
    consumers: state.consumer_count,
    upstreams: [stream.mirror, ...(stream.sources ?? [])].filter(Boolean),
  };
}
