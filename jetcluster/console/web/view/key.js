// One key: its value, its history, and what differs between two revisions.
import { html, useRef } from "../vendor/ui.js";
import { ago, bytes, exact, time } from "../format.js";
import { bucket as load, current, historyOf, write } from "../kv.js";
import { Act } from "../part/act.js";
import { confirm } from "../part/dialog.js";
import { Headers, kindOf, Payload, preview, pretty, hexLines } from "../part/payload.js";
import { Stale, usePoll, Waiting } from "../part/poll.js";
import { refine, route, to } from "../route.js";
import { text } from "../session.js";
import { Operation, whyNoWrite } from "./bucket.js";
import { Difference } from "./difference.js";
import { editKey } from "./key_edit.js";

const LIVE_MS = 3000;

export function Key({ name, of }) {
  const kept = useRef({ revision: 0, found: [] });
  const poll = usePoll(async () => {
    const bucket = await load(name);
    // The history is read again once the stream has changed: it may be some megabytes.
    if (bucket.state.last_seq !== kept.current.seq || !kept.current.found.length) kept.current = { seq: bucket.state.last_seq, found: await fresh(bucket, of) };
    return { bucket, history: kept.current.found };
  }, LIVE_MS, [name, of]);
  const again = () => {
    kept.current = { seq: 0, found: [] };
    refine({ rev: "", against: "" });
    return poll.again();
  };
  const title = html`<a href=${to("kv", name)}>${name}</a> <span class="faint">/</span> <span class="mono">${of}</span>`;
  if (!poll.data) return html`<h1>${title}</h1><${Waiting} poll=${poll} what="the key" />`;
  const { bucket, history } = poll.data;
  if (!history.length) return html`<h1>${title}</h1><p>This key has no value, and no history.</p>`;
  const { query } = route.value;
  const at = (field) => history.find((one) => String(one.revision) === query.get(field));
  const last = history[0];
  const shown = at("rev") ?? last;
  const against = at("against");
  return html`<div class="heading"><h1>${title}</h1> <${Operation} of=${last.operation} /><${Actions} ...${{ bucket, last, again }} /></div>
    <${Stale} poll=${poll} />
    <div class="columns key">
      <section class="panel"><h2>${against ? `From revision ${exact(against.revision)} to ${exact(shown.revision)}` : `Revision ${exact(shown.revision)}`}</h2>
        ${against ? html`<${Difference} old=${asText(against)} now=${asText(shown)} oldName=${`revision ${exact(against.revision)}`} nowName=${`revision ${exact(shown.revision)}`} />` : html`<${Value} entry=${shown} />`}</section>
      <section class="panel"><h2>History</h2><${History} ...${{ name, of, history, shown, against }} /></section>
    </div>`;
}

/** The history from any replica, once it has what the leader has. */
async function fresh(bucket, key) {
  const [found, newest] = await Promise.all([historyOf(bucket, key), current(bucket, key).catch(() => null)]);
  return newest && newest.revision > (found[0]?.revision ?? 0) ? [newest, ...found] : found;
}

function asText(entry) {
  if (entry.operation !== "PUT") return "";
  const kind = kindOf(entry.value);
  return kind === "json" ? pretty(text(entry.value)) : kind === "hex" ? hexLines(entry.value) : text(entry.value);
}

function Value({ entry }) {
  return html`<p class="faint">${time(entry.time)}, ${ago(entry.time)}</p>
    ${entry.operation === "PUT" ? html`<${Payload} key=${entry.revision} data=${entry.value} name=${entry.key} />` : html`<p><${Operation} of=${entry.operation} /> It has no value.</p>`}
    <${Headers} fields=${entry.headers} />`;
}

function History({ name, of, history, shown, against }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="History"><table class="history"><thead><tr><th scope="col" class="end">Revision</th><th scope="col">Time</th><th scope="col">Value</th><th scope="col">Compare</th></tr></thead>
    <tbody>${history.map((one, at) => {
      const before = history[at + 1];
      return html`<tr key=${one.revision} aria-current=${one === shown ? "true" : undefined}>
        <td class="end"><a href=${to("kv", name, "k", of, { rev: String(one.revision) })}>${exact(one.revision)}</a></td><td title=${ago(one.time)}>${time(one.time)}</td>
        <td>${one.operation === "PUT" ? html`<span class="mono clip" title=${bytes(one.value.length)}>${preview(one.value)}</span>` : html`<${Operation} of=${one.operation} />`}</td>
        <td>${before && html`<a href=${to("kv", name, "k", of, { rev: String(one.revision), against: String(before.revision) })}>to ${exact(before.revision)}</a>`}
          ${one !== shown && html` <a href=${to("kv", name, "k", of, { rev: String(Math.max(shown.revision, one.revision)), against: String(Math.min(shown.revision, one.revision)) })}>to the shown</a>`}</td></tr>`;
    })}</tbody></table></div>`;
}

function Actions({ bucket, last, again }) {
  const subject = bucket.prefix + last.key;
  const no = whyNoWrite(bucket, subject);
  const binary = last.operation === "PUT" && kindOf(last.value) === "hex" ? "The value is not text." : "";
  const gone = last.operation === "PUT" ? "" : "It has no value.";
  const button = (verb, why, danger, act) => html`<${Act} class=${danger ? "danger" : ""} why=${why} act=${act}>${verb}<//>`;
  return html`<div class="actions">
    ${button(gone ? "Put a value" : "Edit", no || binary, false, () => editKey(bucket, last, again))}
    ${button("Delete", no || gone, true, () => take(bucket, last, "DEL", again))}
    ${button("Purge", no || (last.operation === "PURGE" ? "It is purged." : "") || (bucket.config.allow_rollup_hdrs ? "" : "The bucket allows no roll-up."), true, () => take(bucket, last, "PURGE", again))}</div>`;
}

function take(bucket, last, operation, again) {
  const purge = operation === "PURGE";
  confirm({
    title: `${purge ? "Purge" : "Delete"} ${last.key}`,
    explain: html`<p>${purge ? "Its value and its whole history are removed; only a marker stays." : "A marker says that it is deleted; its history stays."} Refused if it is not at revision ${exact(last.revision)} any more.</p>`,
    verb: purge ? "Purge the key" : "Delete the key",
    act: async () => {
      await write(bucket, last.key, "", { expected: last.revision, operation });
      await again();
    },
    done: `${last.key} is ${purge ? "purged" : "deleted"}.`,
  });
}
