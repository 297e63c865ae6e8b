// Writing a key: a new one, or another value for the revision that is shown; who was slower sees both values.
import { html, useMemo, useState } from "../vendor/ui.js";
import { exact, time } from "../format.js";
import { Conflict, create, current, write } from "../kv.js";
import { open, tell } from "../part/dialog.js";
import { pretty } from "../part/payload.js";
import { Notice } from "../part/poll.js";
import { go } from "../route.js";
import { text } from "../session.js";
import { Difference } from "./difference.js";

export function putKey(bucket, done) {
  open(`New key in ${bucket.name}`, (shut) => html`<${Put} ...${{ bucket, done, shut }} />`);
}

/** Edits `entry`, the newest of its key. */
export function editKey(bucket, entry, done) {
  open(`Edit ${entry.key}`, (shut) => html`<${Put} ...${{ bucket, entry, done, shut }} />`);
}

function Put({ bucket, entry = null, done, shut }) {
  const [key, setKey] = useState(entry?.key ?? "");
  const [value, setValue] = useState(entry?.operation === "PUT" ? text(entry.value) : "");
  const [ttl, setTtl] = useState("");
  const [expected, setExpected] = useState(entry?.revision ?? null);
  const [state, set] = useState({ busy: false, error: null, theirs: null });

  const submit = async (event) => {
    event.preventDefault();
    set((old) => ({ ...old, busy: true, error: null }));
    try {
      if (!/^[-/_=.a-zA-Z0-9]+$/.test(key) || /^\.|\.$|\.\./.test(key)) throw new Error("A key has letters, digits and - / _ = . and no dot at an end or beside another");
      const revision = expected === null ? await create(bucket, key, value, { ttl }) : await write(bucket, key, value, { expected, ttl });
      shut();
      tell(`${key} is stored as revision ${exact(revision)}.`);
      done();
      if (!entry) go("kv", bucket.name, "k", key);
    } catch (error) {
      const theirs = error instanceof Conflict ? await current(bucket, key).catch(() => null) : null;
      set({ busy: false, error, theirs });
    }
  };
  const over = () => {
    setExpected(state.theirs.revision);
    set({ busy: false, error: null, theirs: null });
  };
  const take = () => {
    over();
    setValue(state.theirs.operation === "PUT" ? text(state.theirs.value) : "");
  };
  const json = useMemo(() => isJson(value), [value]);
  return html`<form onSubmit=${submit}>
    ${!entry && html`<label>Key <input required autofocus class="mono" spellcheck="false" autocomplete="off" placeholder="app.color" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>`}
    <label>Value <textarea name="value" rows="12" spellcheck="false" value=${value} onInput=${(event) => setValue(event.target.value)}></textarea></label>
    <div class="bar"><button type="button" class="small" disabled=${!json} onClick=${() => setValue(pretty(value))}>Indent JSON</button>
      <span class="faint">${expected === null ? "Refused if the key has a value." : `Refused if it is not at revision ${exact(expected)} any more.`}</span></div>
    ${bucket.config.allow_msg_ttl && html`<label>Time to live <input placeholder="like 1h; empty: for ever" value=${ttl} onInput=${(event) => setTtl(event.target.value.trim())} /></label>`}
    <${Notice} error=${state.error} />
    ${state.theirs && html`<div class="panel"><h2>Revision ${exact(state.theirs.revision)} of ${time(state.theirs.time)}, against yours</h2>
      <${Difference} ...${comparable(state.theirs, value)} oldName=${state.theirs.operation === "PUT" ? "theirs" : "theirs: deleted"} nowName="yours" />
      <div class="buttons"><button type="button" onClick=${take}>Take theirs</button><button type="button" onClick=${over}>Go on with mine, over revision ${exact(state.theirs.revision)}</button></div></div>`}
    <div class="buttons"><button type="button" onClick=${shut}>Cancel</button><button class="primary" disabled=${state.busy || Boolean(state.theirs) || !key}>Store</button></div>
  </form>`;
}

/** Both indented if both are JSON: what only moved is no difference. */
function comparable(theirs, value) {
  const old = theirs.operation === "PUT" ? text(theirs.value) : "";
  return isJson(old) && isJson(value) ? { old: pretty(old), now: pretty(value) } : { old, now: value };
}

function isJson(value) {
  try {
    JSON.parse(value);
    return true;
  } catch {
    return false;
  }
}
