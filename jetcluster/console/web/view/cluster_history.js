// 24 hours of the main figures, which each server keeps by itself: of one server, or of all together.
import { html, useMemo } from "../vendor/ui.js";
import { bytes, count, seconds } from "../format.js";
import { Chart } from "../part/chart.js";
import { Silent, Stale, usePoll, Waiting } from "../part/poll.js";
import { refine, route } from "../route.js";
import { may, sys } from "../session.js";

const POLL_MS = 30_000;
const POINTS = 240;
const RANGES = [["1", "1 hour"], ["6", "6 hours"], ["24", "24 hours"]];
const perSecond = (value) => `${count(value)}/s`;
const bytesPerSecond = (value) => `${bytes(value)}/s`;
const percent = (value) => `${count(value)} %`;

/** [title, [[label, column, "mean" or "max"], …], show, "sum" or "max" over all servers] */
const CHARTS = [
  ["Messages", [["in", "in_msgs", "mean"], ["out", "out_msgs", "mean"]], perSecond, "sum"],
  ["Bytes", [["in", "in_bytes", "mean"], ["out", "out_bytes", "mean"]], bytesPerSecond, "sum"],
  ["Connections", [["connections", "connections", "max"]], count, "sum"],
  ["CPU, 100 % is one core", [["mean", "cpu", "mean"], ["maximum", "cpu", "max"]], percent, "sum"],
  ["Memory", [["memory", "memory", "max"]], bytes, "sum"],
  ["Stored", [["file", "storage", "max"], ["memory", "stored_memory", "max"]], bytes, "sum"],
  ["Free on the disk", [["free", "disk_free", "mean"]], bytes, "min"],
  ["API requests", [["requests", "api_requests", "mean"], ["errors", "api_errors", "mean"]], perSecond, "sum"],
  ["fsync of the journal", [["mean", "fsync_mean", "mean"], ["slowest, by bucket", "fsync_max", "max"]], seconds, "max"],
  ["Commit", [["mean", "commit_mean", "mean"]], seconds, "max"],
  ["Streams led", [["led", "streams_led", "max"]], count, "sum"],
  ["Replicas behind", [["behind", "replicas_behind", "max"]], count, "sum"],
  ["Entries that the slowest replica lacks", [["lag", "lag_max", "max"]], count, "max"],
  ["Slow consumers", [["closed", "slow_consumers", "mean"]], perSecond, "sum"],
];
const COLUMNS = [...new Set(CHARTS.flatMap(([, series]) => series.map(([, column]) => column)))];
const JOIN = {
  sum: (values) => values.reduce((total, value) => total + value, 0),
  max: (values) => Math.max(...values),
  min: (values) => Math.min(...values),
};

/** Throws what a user without the right is told. */
function allowed() {
  const subject = "$SYS.REQ.SERVER.PING.HISTORY";
  if (!may(subject)) throw new Error(`this user may not publish to ${subject}`);
  return true;
}

export function ClusterHistory() {
  const hours = route.value.query.get("hours") ?? "1";
  const chosen = route.value.query.get("server") ?? "";
  const poll = usePoll(() => allowed() && sys("HISTORY", { seconds: Number(hours) * 3600, points: POINTS, columns: COLUMNS }), POLL_MS, [hours]);
  const kept = useMemo(() => (poll.data ?? []).filter((one) => one.data.columns), [poll.data]);
  const of = useMemo(() => kept.filter((one) => !chosen || one.server.name === chosen), [kept, chosen]);
  const charts = useMemo(() => joined(of), [of]);
  if (!poll.data) return html`<${Waiting} poll=${poll} what="the history" />`;
  const without = poll.data.filter((one) => !one.data.columns);
  return html`<div class="bar">
      <label class="check">Server <select value=${chosen} onChange=${(event) => refine({ server: event.target.value })}>
        <option value="">all together</option>
        ${kept.map((one) => html`<option key=${one.server.id} value=${one.server.name}>${one.server.name}</option>`)}
      </select></label>
      <label class="check">Last <select value=${hours} onChange=${(event) => refine({ hours: event.target.value })}>
        ${RANGES.map(([value, title]) => html`<option key=${value} value=${value}>${title}</option>`)}
      </select></label>
      <span class="faint">${kept[0] ? `one point each ${seconds(kept[0].data.step)}; gaps are times when a server did not run` : ""}</span>
    </div>
    <${Stale} poll=${poll} /><${Silent} names=${poll.data.silent} what="its part of the sums is missing here." />
    ${without.length > 0 && html`<p class="notice">Not kept on ${without.map((one) => one.server.name).join(", ")}: ${without[0].error?.description ?? "no answer"}</p>`}
    ${kept.length > 0 && html`<div class="charts">${charts.map((one) => html`<${Chart} key=${`${one.title} ${chosen}`} ...${one} />`)}</div>`}`;
}

/** The charts of some servers, point by point of the same time; null where none of them has a value. */
function joined(servers) {
  const times = [...new Set(servers.flatMap((one) => one.data.times))].sort((a, b) => a - b);
  const places = servers.map((one) => new Map(one.data.times.map((time, at) => [time, at])));
  return CHARTS.map(([title, series, show, join]) => ({
    title,
    metric: `${join} of ${[...new Set(series.map(([, column]) => column))].join(", ")}`,
    times,
    show,
    series: series.map(([label, column, which]) => ({
      label,
      values: times.map((time) => {
        const values = servers.map((one, at) => one.data.columns[column][which][places[at].get(time)]).filter((value) => value !== null && value !== undefined);
        return values.length ? JOIN[join](values) : null;
      }),
    })),
  }));
}
