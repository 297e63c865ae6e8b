// Publishing a message to a stream, with the server's ack.
import { headers as newHeaders } from "../vendor/nats.js";
import { html, useState } from "../vendor/ui.js";
import { exact } from "../format.js";
import { parse } from "../json.js";
import { open } from "../part/dialog.js";
import { Notice } from "../part/poll.js";
import { ApiError, raw } from "../session.js";

export function publishTo(info, done) {
  open(`Publish to ${info.config.name}`, (shut) => html`<${Publish} info=${info} shut=${shut} done=${done} />`);
}

function Publish({ info, shut, done }) {
  const first = info.config.subjects?.[0] ?? "";
  const [state, set] = useState({ busy: false, error: null, ack: null });
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    set({ busy: true, error: null, ack: null });
    try {
      const fields = headersOf(form.get("headers"));
      if (form.get("expected")) fields.set("Nats-Expected-Last-Sequence", form.get("expected"));
      const answer = await raw(form.get("subject"), form.get("payload"), [...fields].length ? fields : undefined);
      const ack = parse(answer.string());
      if (ack.error) throw new ApiError(ack.error);
      set({ busy: false, error: null, ack });
      done();
    } catch (error) {
      set({ busy: false, error, ack: null });
    }
  };
  return html`<form onSubmit=${submit}>
    <label>Subject <input name="subject" class="mono" required spellcheck="false" defaultValue=${/[*>]/.test(first) ? first.replace(/[*>].*$/, "") : first} /></label>
    <p class="faint">The stream takes <code>${(info.config.subjects ?? []).join(" ")}</code></p>
    <label>Headers, one per line <textarea name="headers" rows="2" placeholder="Nats-Msg-Id: 17" spellcheck="false"></textarea></label>
    <label>Payload <textarea name="payload" rows="8" spellcheck="false"></textarea></label>
    <label>Only if the last sequence is <input name="expected" type="number" min="0" placeholder=${String(info.state.last_seq)} /></label>
    <${Notice} error=${state.error} />
    ${state.ack && html`<p class="notice good" role="status">Stored as ${exact(state.ack.seq)} of ${state.ack.stream}${state.ack.duplicate ? ": it was there already (duplicate)" : ""}.</p>`}
    <div class="buttons"><button type="button" onClick=${shut}>Close</button><button class="primary" disabled=${state.busy}>Publish</button></div>
  </form>`;
}

/** Throws for a line without a colon. */
function headersOf(text) {
  const fields = newHeaders();
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`a header is "Name: value": ${line}`);
    fields.append(line.slice(0, at).trim(), line.slice(at + 1).trim());
  }
  return fields;
}
