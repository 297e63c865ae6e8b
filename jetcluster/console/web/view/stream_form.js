// Creating and editing a stream: the common fields by form, all of them as JSON. What is valid the server says.
import { html, useState } from "../vendor/ui.js";
import { fromHuman, nanoseconds } from "../format.js";
import { open, tell } from "../part/dialog.js";
import { Notice } from "../part/poll.js";
import { go } from "../route.js";
import { js } from "../session.js";

const NEW = { name: "", subjects: [], storage: "file", retention: "limits", num_replicas: 3, discard: "old", allow_direct: true };

export function createStream() {
  open("New stream", (shut) => html`<${Form} config=${NEW} shut=${shut} fresh=${true} done=${(name) => go("streams", name)} />`);
}

export function editStream(config, done) {
  open(`Edit ${config.name}`, (shut) => html`<${Form} config=${config} shut=${shut} fresh=${false} done=${done} />`);
}

// [field, label, kind, hint]: the kinds are "text", "number", "size", "duration", "flag", or a list of choices.
const FIELDS = [
  ["num_replicas", "Replicas", "number", "1 to 5; a write is acknowledged by their majority"],
  ["storage", "Storage", ["file", "memory"]],
  ["retention", "Retention", ["limits", "interest", "workqueue"]],
  ["discard", "When full", ["old", "new"], "old: the oldest messages go; new: new ones are refused"],
  ["max_msgs", "Messages at most", "number", "-1: no limit"],
  ["max_bytes", "Bytes at most", "number", "-1: no limit"],
  ["max_age", "Age at most", "duration", "like 90s, 24h, 7d; empty: no limit"],
  ["max_msgs_per_subject", "Messages per subject at most", "number", "-1: no limit"],
  ["max_msg_size", "Size of a message at most", "number", "bytes; -1: no limit"],
  ["duplicate_window", "Duplicates seen for", "duration", "like 2m"],
  ["description", "Description", "text"],
  ["allow_direct", "Replicas answer reads (Direct Get)", "flag"],
  ["allow_rollup_hdrs", "Allow roll-ups", "flag"],
  ["allow_msg_ttl", "Allow a time to live per message", "flag"],
  ["deny_delete", "Deny deleting messages", "flag"],
  ["deny_purge", "Deny purging", "flag"],
];

function Form({ config, fresh, shut, done }) {
  const [draft, setDraft] = useState(config);
  const [text, setText] = useState(null);
  const [state, set] = useState({ busy: false, error: null });
  const change = (field, value) => setDraft((old) => ({ ...old, [field]: value }));

  const submit = async (event) => {
    event.preventDefault();
    set({ busy: true, error: null });
    try {
      const wanted = text === null ? draft : JSON.parse(text);
      // A name is a part of subjects and of file names; the server says the same, but a client cannot ask it this way.
      if (!/^[^\s.*>/\\]+$/.test(wanted.name ?? "")) throw new Error("a stream's name has no blanks, dots, stars, slashes or >");
      const answer = await js(`STREAM.${fresh ? "CREATE" : "UPDATE"}.${wanted.name}`, wanted, 15_000);
      shut();
      tell(fresh ? `${answer.config.name} is created.` : `${answer.config.name} is changed.`);
      done(answer.config.name);
    } catch (error) {
      set({ busy: false, error });
    }
  };

  return html`<form onSubmit=${submit}>
    <div class="bar"><button type="button" class="small" aria-pressed=${text === null} onClick=${() => { if (text !== null) fromJson(text, setDraft, setText, set); }}>Form</button>
      <button type="button" class="small" aria-pressed=${text !== null} onClick=${() => text === null && setText(JSON.stringify(draft, null, 2))}>All as JSON</button></div>
    ${text === null
      ? html`<label>Name <input required disabled=${!fresh} spellcheck="false" value=${draft.name} onInput=${(event) => change("name", event.target.value)} /></label>
        ${!draft.mirror && html`<label>Subjects, one per line <textarea rows="3" spellcheck="false" placeholder=${draft.name || "orders.>"} value=${(draft.subjects ?? []).join("\n")}
          onInput=${(event) => change("subjects", event.target.value.split("\n").map((one) => one.trim()).filter(Boolean))}></textarea></label>`}
        <div class="fields">${FIELDS.map((field) => html`<${Field} key=${field[0]} field=${field} value=${draft[field[0]]} change=${change} />`)}</div>`
      : html`<label>Configuration <textarea rows="22" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>`}
    <${Notice} error=${state.error} />
    <div class="buttons"><button type="button" onClick=${shut}>Cancel</button><button class="primary" disabled=${state.busy}>${fresh ? "Create" : "Change"}</button></div>
  </form>`;
}

function fromJson(text, setDraft, setText, set) {
  try {
    setDraft(JSON.parse(text));
    setText(null);
    set({ busy: false, error: null });
  } catch (error) {
    set({ busy: false, error });
  }
}

function Field({ field: [name, label, kind, hint = ""], value, change }) {
  if (kind === "flag") {
    return html`<label class="check"><input type="checkbox" checked=${Boolean(value)} onChange=${(event) => change(name, event.target.checked)} /> ${label}</label>`;
  }
  if (Array.isArray(kind)) {
    return html`<label title=${hint}>${label} <select value=${value ?? kind[0]} onChange=${(event) => change(name, event.target.value)}>
      ${kind.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>`;
  }
  if (kind === "duration") return html`<${Duration} ...${{ name, label, hint, value, change }} />`;
  const given = (event) => change(name, kind === "number" ? (event.target.value === "" ? undefined : Number(event.target.value)) : event.target.value);
  return html`<label title=${hint}>${label} <input type=${kind} placeholder=${hint} value=${value ?? ""} onInput=${given} /></label>`;
}

function Duration({ name, label, hint, value, change }) {
  const [typed, setTyped] = useState(value ? nanoseconds(value).replace(/\s|min/g, (one) => (one === "min" ? "m" : "")) : "");
  const bad = typed !== "" && Number.isNaN(fromHuman(typed));
  const given = (event) => {
    setTyped(event.target.value);
    const found = event.target.value.trim() === "" ? 0 : fromHuman(event.target.value);
    if (!Number.isNaN(found)) change(name, Math.round(found * 1e9));
  };
  return html`<label title=${hint}>${label} <input aria-invalid=${bad} placeholder=${hint} value=${typed} onInput=${given} /></label>`;
}
