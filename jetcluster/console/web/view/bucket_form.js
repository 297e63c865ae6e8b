// Creating a bucket of either kind: a stream by its few fields that people choose.
import { html, useState } from "../vendor/ui.js";
import { open, tell } from "../part/dialog.js";
import { Field, hasWrong } from "../part/field.js";
import { Notice } from "../part/poll.js";
import { go } from "../route.js";
import { js } from "../session.js";

const CREATE_MS = 15_000;
export const COMMON = [
  { name: "num_replicas", label: "Replicas", kind: "number", hint: "1 to 5" },
  { name: "storage", label: "Storage", kind: ["file", "memory"] },
  { name: "max_bytes", label: "Bytes at most", kind: "number", hint: "empty: no limit" },
  { name: "description", label: "Description", kind: "text" },
];
// Words of the server's errors, and the field that each is about.
const ABOUT = [["marker", "subject_delete_marker_ttl"], ["replica", "num_replicas"], ["messages per subject", "max_msgs_per_subject"], ["max age", "max_age"], ["storage", "max_bytes"], ["max bytes", "max_bytes"], ["stream name", "name"], ["description", "description"]];

/** `configOf(name, given)` returns the stream of a bucket; its name gets `prefix`. `page` shows such buckets. */
export function createBucket({ prefix, page, fields, first, configOf }) {
  open("New bucket", (shut) => html`<${Create} ...${{ prefix, page, fields, first, configOf, shut }} />`);
}

function Create({ prefix, page, fields, first, configOf, shut }) {
  const [{ name, ...given }, setDraft] = useState({ name: "", num_replicas: 3, storage: "file", ...first });
  const [state, set] = useState({ busy: false, error: null, about: "" });
  const change = (field, value) => setDraft((old) => ({ ...old, [field]: value }));
  const submit = async (event) => {
    event.preventDefault();
    set({ busy: true, error: null, about: "" });
    try {
      if (!/^[-\w]+$/.test(name)) throw new Error("The name, as a stream name, has letters, digits, - and _");
      const chosen = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
      await js(`STREAM.CREATE.${prefix}${name}`, { name: `${prefix}${name}`, retention: "limits", ...configOf(name, chosen) }, CREATE_MS);
      shut();
      tell(`The bucket ${name} is created.`);
      go(page, name);
    } catch (error) {
      set({ busy: false, error, about: ABOUT.find(([part]) => error.message.toLowerCase().includes(part))?.[1] ?? "" });
    }
  };
  const errorOf = (field) => (state.error && state.about === field ? state.error.message : "");
  return html`<form onSubmit=${submit}>
    <${Field} field=${{ name: "name", label: "Name", kind: "text", hint: "letters, digits, - and _" }} value=${name} change=${change} error=${errorOf("name")} />
    <div class="fields">${fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${given[field.name]} change=${change} error=${errorOf(field.name)} />`)}</div>
    <${Notice} error=${state.about ? null : state.error} />
    <div class="buttons"><button type="button" onClick=${shut}>Cancel</button><button class="primary" disabled=${state.busy || !name || hasWrong(given)}>Create</button></div>
  </form>`;
}
