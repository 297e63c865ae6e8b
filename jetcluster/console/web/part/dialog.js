// Dialogs, and the notices at the edge of the page. What destroys asks for the name of what it destroys.
import { html, signal, useEffect, useRef, useState } from "../vendor/ui.js";
import { Notice } from "./poll.js";

const NOTICE_MS = 6000;
const opened = signal([]);
/** The dialog that is shown, and those that wait behind it. */
const notices = signal([]);
let last = 0;

/** Shows `content(close)` in a dialog, after those that are open. */
export function open(title, content) {
  opened.value = [...opened.value, { title, content, id: ++last }];
}

export function close() {
  opened.value = opened.value.slice(1);
}

export function tell(message, kind = "good") {
  const id = ++last;
  notices.value = [...notices.value, { id, message, kind }];
  setTimeout(() => {
    notices.value = notices.value.filter((one) => one.id !== id);
  }, NOTICE_MS);
}

/**
 * Asks before `act()`. With `name` the user types it. Shows the error of `act`, and `done` once it has worked.
 */
export function confirm({ title, explain, name = "", verb, act, done = "" }) {
  open(title, (shut) => html`<${Confirm} ...${{ explain, name, verb, act, done, shut }} />`);
}

function Confirm({ explain, name, verb, act, done, shut }) {
  const [typed, setTyped] = useState("");
  const [state, set] = useState({ busy: false, error: null });
  const run = async (event) => {
    event.preventDefault();
    set({ busy: true, error: null });
    try {
      await act();
      shut();
      if (done) tell(done);
    } catch (error) {
      set({ busy: false, error });
    }
  };
  return html`<form onSubmit=${run}>
    <div>${explain}</div>
    ${name &&
    html`<label>Type <code>${name}</code> to confirm
      <input autofocus autocomplete="off" spellcheck="false" value=${typed} onInput=${(event) => setTyped(event.target.value)} />
    </label>`}
    <${Notice} error=${state.error} />
    <div class="buttons">
      <button type="button" onClick=${shut}>Cancel</button>
      <button class="danger" disabled=${state.busy || (name && typed !== name)}>${verb}</button>
    </div>
  </form>`;
}

export function Dialogs() {
  const box = useRef(null);
  const [one] = opened.value;
  useEffect(() => {
    if (box.current.open) box.current.close();
    if (one) box.current.showModal(); // also for the next one: that is what sets the focus
  }, [one]);
  // The element tells late that it was closed: the next one may be open by then.
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${() => box.current.open || close()}
      onClick=${(event) => event.target === box.current && close()}>
      ${one &&
      html`<div class="dialog" key=${one.id}>
        <header><h2 id="dialog-title">${one.title}</h2><button type="button" class="plain" aria-label="Close" onClick=${close}>✕</button></header>
        ${one.content(close)}
      </div>`}
    </dialog>
    <div class="notices" role="status" aria-live="polite">
      ${notices.value.map((notice) => html`<p key=${notice.id} class=${`notice ${notice.kind}`}>${notice.message}</p>`)}
    </div>`;
}
