// One bucket of objects: its list, uploads and downloads.
import { html, useRef } from "../vendor/ui.js";
import { ago, bytes, exact, time } from "../format.js";
import { deleteObject, fetchObject, objectBucket, objectsOf, storeObject, whyNoChange } from "../objects.js";
import { Act } from "../part/act.js";
import { confirm } from "../part/dialog.js";
import { Stale, usePoll, Waiting } from "../part/poll.js";
import { figure, Table } from "../part/table.js";
import { Chip, Figure, Figures } from "../part/words.js";
import { go, to } from "../route.js";
import { js, whyNot } from "../session.js";
import { forget, transfer, transfers } from "../transfers.js";
import { Replicas } from "./cluster.js";
import { Layouts } from "./objects.js";
import { groupOf } from "./streams.js";

const LIVE_MS = 5000;

export function ObjectBucket({ name }) {
  const kept = useRef({ seq: -1, objects: [] });
  const poll = usePoll(async () => {
    const bucket = await objectBucket(name);
    const { last_seq: seq, messages } = bucket.state;
    if (seq !== kept.current.seq || messages !== kept.current.messages) kept.current = { seq, messages, objects: await objectsOf(bucket) };
    return { bucket, objects: kept.current.objects };
  }, LIVE_MS, [name]);
  if (!poll.data) return html`<h1>${name}</h1><${Waiting} poll=${poll} what="the objects" />`;
  const { bucket, objects } = poll.data;
  const no = whyNoChange(bucket);
  const columns = [
    { id: "name", title: "Object", value: (one) => one.name, show: (one) => html`<b class="clip" title=${one.name}>${one.name}</b> ${one.link && html`<${Chip} title=${`${one.link.bucket}/${one.link.name}`}>link<//>`}` },
    {
      id: "do", title: "Actions", value: () => "",
      show: (one) => html`<span class="pair"><${Act} class="small" why=${one.link ? "It is a link." : ""} act=${() => download(bucket, one)} aria-label=${`Download ${one.name}`}>Download<//>
        <${Act} class="small danger" why=${no} act=${() => remove(bucket, one, poll.again)} aria-label=${`Delete ${one.name}`}>Delete<//></span>`,
    },
    { id: "size", title: "Size", end: true, hint: "size of its metadata", value: (one) => one.size, show: (one) => html`<span title=${`${exact(one.size)} bytes`}>${bytes(one.size)}</span>` },
    figure("chunks", "Chunks", "chunks of its metadata", (one) => one.chunks),
    { id: "time", title: "Modified", end: true, hint: "time of its metadata", value: (one) => one.time, show: (one) => html`<span title=${ago(one.time)}>${time(one.time)}</span>` },
    { id: "digest", title: "Digest", hint: "SHA-256, base64url", value: (one) => one.digest, show: (one) => html`<span class="mono clip short" title=${one.digest}>${one.digest.replace(/^sha-256=/i, "")}</span>` },
    { id: "description", title: "Description", value: (one) => one.description, show: (one) => html`<span class="clip" title=${one.description}>${one.description}</span>` },
  ];
  return html`<div class="heading"><h1>${name}</h1> <${Layouts} bucket=${bucket} /><${Actions} ...${{ bucket, objects, no, again: poll.again }} /></div>
    ${bucket.config.description && html`<p class="faint">${bucket.config.description}</p>`}
    <${Stale} poll=${poll} />
    <${Figures}>
      <${Figure} name="Objects" value=${exact(objects.length)} metric="metadata messages of the bucket" />
      <${Figure} name="Their size" value=${bytes(objects.reduce((sum, one) => sum + one.size, 0))} metric="sum of size" />
      <${Figure} name="Stored" value=${bytes(bucket.state.bytes)} metric="state.bytes of the stream, each replica" />
      <${Figure} name="Storage" value=${`${bucket.config.storage}, ${bucket.config.num_replicas}×`} metric="storage, num_replicas" />
    <//>
    <p class="faint">Stream <a href=${to("streams", bucket.stream)}>${bucket.stream}</a> <${Replicas} group=${groupOf(bucket.info)} /></p>
    <${Transfers} bucket=${name} />
    <${Table} label="objects" columns=${columns} rows=${objects} keyOf=${(one) => one.name} sort="name" empty="The bucket is empty." />`;
}

function Actions({ bucket, objects, no, again }) {
  const picker = useRef(null);
  const subject = `$JS.API.STREAM.DELETE.${bucket.stream}`;
  const picked = (event) => {
    upload(bucket, objects, [...event.target.files], again);
    event.target.value = ""; // the same file may be chosen again
  };
  return html`<div class="actions">
    <input ref=${picker} type="file" multiple hidden aria-label="Files to upload" onChange=${picked} />
    <${Act} why=${no} act=${() => picker.current.click()}>Upload<//>
    <${Act} class="danger" why=${whyNot(subject)} act=${() => removeBucket(bucket, objects)}>Delete the bucket<//></div>`;
}

/** Uploads files; those whose names are taken only after one question about all of them. */
function upload(bucket, objects, files, again) {
  const known = new Map(objects.map((one) => [one.name, one]));
  const run = async (file) => {
    const { name, size } = file;
    const shared = known.get(name)?.shared;
    await transfer({ bucket: bucket.name, name, way: "upload", size }, (seen, stopped) => storeObject(bucket, { name, file, shared }, seen, stopped));
    await again();
  };
  const taken = files.filter((file) => known.has(file.name));
  for (const file of files) if (!known.has(file.name)) run(file);
  if (!taken.length) return;
  confirm({
    title: taken.length === 1 ? `Replace ${taken[0].name}` : `Replace ${exact(taken.length)} objects`,
    explain: html`<p>Objects of these names are there; the files take their places.</p>
      <ul>${taken.map((file) => html`<li key=${file.name}><b>${file.name}</b>: ${bytes(known.get(file.name).size)} of ${time(known.get(file.name).time)}, now ${bytes(file.size)}</li>`)}</ul>`,
    verb: "Replace",
    act: async () => taken.forEach(run),
  });
}

async function download(bucket, object) {
  const blob = await transfer({ bucket: bucket.name, name: object.name, way: "download", size: object.size }, (seen, stopped) => fetchObject(bucket, object, seen, stopped));
  if (!blob) return;
  const address = URL.createObjectURL(blob);
  Object.assign(document.createElement("a"), { href: address, download: object.name.split("/").at(-1) }).click();
  URL.revokeObjectURL(address);
}

function Transfers({ bucket }) {
  const shown = transfers.value.filter((one) => one.bucket === bucket);
  if (!shown.length) return null;
  return html`<section class="panel" aria-label="Transfers">${shown.map(
    (one) => html`<div class="transfer" key=${one.id}>
      <span class="clip wide" title=${one.name}>${one.way === "upload" ? "↑" : "↓"} ${one.name}</span>
      <progress max=${one.size || 1} value=${one.state === "done" ? one.size || 1 : one.done} aria-label=${`${one.way} of ${one.name}`}></progress>
      <span class=${one.state === "failed" ? "reason" : "faint"} role="status">${words(one)}</span>
      <button type="button" class="small" onClick=${() => (one.state === "runs" ? one.stop() : forget(one.id))}>${one.state === "runs" ? "Stop" : "Close"}</button>
    </div>`,
  )}</section>`;
}

function words(one) {
  if (one.state === "failed") return one.error.message;
  if (one.state === "runs") return `${bytes(one.done)} of ${bytes(one.size)}`;
  return one.way === "download" ? `${bytes(one.size)}, SHA-256 verified` : `${bytes(one.size)} stored`;
}

function remove(bucket, object, again) {
  confirm({
    title: `Delete ${object.name}`,
    explain: html`<p>${bytes(object.size)} in ${exact(object.chunks)} chunks are removed for good.</p>`,
    name: object.name,
    verb: "Delete the object",
    act: async () => {
      await deleteObject(bucket, object);
      await again();
    },
    done: `${object.name} is deleted.`,
  });
}

function removeBucket(bucket, objects) {
  confirm({
    title: `Delete the bucket ${bucket.name}`,
    explain: html`<p>All its objects are lost: ${exact(objects.length)}, ${bytes(bucket.state.bytes)}.</p>`,
    name: bucket.name,
    verb: "Delete the bucket",
    act: async () => {
      await js(`STREAM.DELETE.${bucket.stream}`);
      go("objects");
    },
    done: `The bucket ${bucket.name} is deleted.`,
  });
}
