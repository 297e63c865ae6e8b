// Creating and editing a stream: the common fields by form, all of them as JSON. What is valid the server says.
import { html, useState } from "../vendor/ui.js";
import { applied, changesOf } from "../edit.js";
import { parse, stringify } from "../json.js";
import { open, tell } from "../part/dialog.js";
import { Field, hasWrong } from "../part/field.js";
import { Notice } from "../part/poll.js";
import { go } from "../route.js";
import { exactly, js } from "../session.js";

const NEW = { name: "", subjects: [], storage: "file", retention: "limits", num_replicas: 3, discard: "old", allow_direct: true };
const CHANGE_MS = 15_000;

export function createStream() {
  open("New stream", (shut) => html`<${Form} config=${NEW} shut=${shut} fresh=${true} done=${(name) => go("streams", name)} />`);
}

/** Edits the stream of `info`, an answer of STREAM.INFO. */
export function editStream(info, done) {
  const { config } = exactly(info);
  open(`Edit ${config.name}`, (shut) => html`<${Form} config=${config} shut=${shut} fresh=${false} done=${done} />`);
}

const FIELDS = [
  { name: "num_replicas", label: "Replicas", kind: "number", hint: "1 to 5; a write is acknowledged by their majority" },
  { name: "storage", label: "Storage", kind: ["file", "memory"], born: true },
  { name: "retention", label: "Retention", kind: ["limits", "interest", "workqueue"] },
  { name: "discard", label: "When full", kind: ["old", "new"], hint: "old: the oldest messages go; new: new ones are refused" },
  { name: "max_msgs", label: "Messages at most", kind: "number", hint: "-1: no limit" },
  { name: "max_bytes", label: "Bytes at most", kind: "number", hint: "-1: no limit" },
  { name: "max_age", label: "Age at most", kind: "duration", hint: "like 90s, 24h, 7d; empty: no limit" },
  { name: "max_msgs_per_subject", label: "Messages per subject at most", kind: "number", hint: "-1: no limit" },
  { name: "max_msg_size", label: "Bytes of a message at most", kind: "number", hint: "-1: no limit" },
  { name: "max_consumers", label: "Consumers at most", kind: "number", hint: "-1: no limit", born: true },
  { name: "duplicate_window", label: "Duplicates seen for", kind: "duration", hint: "like 2m" },
  { name: "subject_delete_marker_ttl", label: "Markers of subjects whose time is over stay for", kind: "duration", hint: "like 1h; empty: no markers" },
  { name: "description", label: "Description", kind: "text" },
  { name: "allow_direct", label: "Replicas answer reads (Direct Get)", kind: "flag" },
  { name: "allow_rollup_hdrs", label: "Allow roll-ups", kind: "flag" },
  { name: "allow_msg_ttl", label: "Allow a time to live per message", kind: "flag" },
  { name: "deny_delete", label: "Deny deleting messages", kind: "flag" },
  { name: "deny_purge", label: "Deny purging", kind: "flag" },
];
const SUBJECTS = { name: "subjects", label: "Subjects, one per line", kind: "lines" };

function Form({ config, fresh, shut, done }) {
  const [draft, setDraft] = useState(config);
  const [text, setText] = useState(null);
  const [state, set] = useState({ busy: false, error: null });
  const change = (field, value) => setDraft((old) => ({ ...old, [field]: value }));

  const submit = async (event) => {
    event.preventDefault();
    set({ busy: true, error: null });
    try {
      const answer = await store(text === null ? draft : read(text), config, fresh);
      shut();
      tell(fresh ? `${answer.config.name} is created.` : `${answer.config.name} is changed.`);
      done(answer.config.name);
    } catch (error) {
      set({ busy: false, error });
    }
  };
  const toForm = () => {
    try {
      setDraft(read(text));
      setText(null);
      set({ busy: false, error: null });
    } catch (error) {
      set({ busy: false, error });
    }
  };

  const field = (one) => html`<${Field} key=${one.name} field=${{ ...one, fixed: Boolean(!fresh && one.born) }} value=${draft[one.name]} change=${change} />`;
  return html`<form onSubmit=${submit}>
    <div class="bar"><button type="button" class="small" aria-pressed=${text === null} onClick=${() => text !== null && toForm()}>Form</button>
      <button type="button" class="small" aria-pressed=${text !== null} onClick=${() => text === null && setText(stringify(draft, 2))}>All as JSON</button></div>
    ${text === null
      ? html`${field({ name: "name", label: "Name", kind: "text", born: true })}
        ${!draft.mirror && field({ ...SUBJECTS, hint: draft.name || "orders.>" })}
        <div class="fields">${FIELDS.map(field)}</div>`
      : html`<label>Configuration <textarea rows="22" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>`}
    <${Notice} error=${state.error} />
    <div class="buttons"><button type="button" onClick=${shut}>Cancel</button>
      <button class="primary" disabled=${state.busy || (text === null && (!draft.name || hasWrong(draft)))}>${fresh ? "Create" : "Change"}</button></div>
  </form>`;
}

/** The configuration in `text`. Throws for what is none. */
function read(text) {
  const found = parse(text);
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Error("a configuration is an object: { … }");
  return found;
}

/** Creates the stream of `draft`; or changes in it what differs from `config`, the configuration that the form began with. */
async function store(draft, config, fresh) {
  // A name is a part of subjects and of file names; the server says the same, but a client cannot ask it this way.
  if (typeof draft.name !== "string" || !/^[^\s.*>/\\]+$/.test(draft.name)) throw new Error("a stream's name has no blanks, dots, stars, slashes or >");
  if (fresh) return js(`STREAM.CREATE.${draft.name}`, draft, CHANGE_MS);
  if (draft.name !== config.name) throw new Error(`a stream's name cannot change: this is ${config.name}`);
  const now = exactly(await js(`STREAM.INFO.${config.name}`)).config;
  return js(`STREAM.UPDATE.${config.name}`, applied(now, config, changesOf(config, draft)), CHANGE_MS);
}
