// The dialog of a reset: where to go on, and what will come again, before anything is changed.
import { html, useEffect, useState } from "../vendor/ui.js";
import { previewOf } from "../consumer_reset.js";
import { exact, time } from "../format.js";
import { open, tell } from "../part/dialog.js";
import { preview } from "../part/payload.js";
import { Notice } from "../part/poll.js";
import { js } from "../session.js";

const TYPING_MS = 300;

export function reset({ stream, name, info, done }) {
  open(`Reset ${name}`, (shut) => html`<${Reset} ...${{ stream, name, info, done, shut }} />`);
}

function Reset({ stream, name, info, done, shut }) {
  const [way, setWay] = useState("floor");
  const [typed, setTyped] = useState(String(info.ack_floor.stream_seq + 1));
  const [state, set] = useState({ found: null, error: null, busy: false });
  const seq = way === "floor" ? 0 : Number(typed);
  const valid = way === "floor" || (Number.isSafeInteger(seq) && seq > 0);

  useEffect(() => {
    let over = false;
    set({ found: null, error: null, busy: false });
    if (!valid) return () => {};
    const timer = setTimeout(async () => {
      try {
        const found = await previewOf(name, stream, seq);
        if (!over) set((old) => ({ ...old, found }));
      } catch (error) {
        if (!over) set((old) => ({ ...old, error }));
      }
    }, TYPING_MS);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [way, typed]);

  const submit = async (event) => {
    event.preventDefault();
    set((old) => ({ ...old, error: null, busy: true }));
    try {
      const answer = await js(`CONSUMER.RESET.${stream}.${name}`, seq ? { seq } : {});
      shut();
      tell(`${name} goes on at sequence ${exact(answer.reset_seq)}.`);
      done();
    } catch (error) {
      set((old) => ({ ...old, error, busy: false }));
    }
  };

  const policy = info.config.deliver_policy;
  return html`<form onSubmit=${submit}>
    <fieldset><legend>Go on</legend>
      <label class="check"><input type="radio" name="way" checked=${way === "floor"} onChange=${() => setWay("floor")} /> after the ack floor (${exact(info.ack_floor.stream_seq)}): all that was not acknowledged in order</label>
      <label class="check"><input type="radio" name="way" checked=${way === "seq"} onChange=${() => setWay("seq")} /> at a sequence
        <input type="number" min="1" aria-label="Sequence" value=${typed} onFocus=${() => setWay("seq")} onInput=${(event) => setTyped(event.target.value)} /></label>
      ${way === "seq" && !["all", "by_start_sequence", "by_start_time"].includes(policy) && html`<p class="faint">The server refuses that for a consumer that began at “${policy}”.</p>`}
    </fieldset>
    ${valid ? state.found ? html`<${Preview} found=${state.found} />` : !state.error && html`<p class="loading" role="status">Counting…</p>` : html`<p class="reason">A sequence is a number above 0.</p>`}
    <${Notice} error=${state.error} />
    <div class="buttons"><button type="button" onClick=${shut}>Cancel</button>
      <button class="danger" disabled=${state.busy || !state.found}>Reset</button></div>
  </form>`;
}

function Preview({ found }) {
  const { start, again, fresh, skipped, last, first, exact: counted } = found;
  const most = counted ? "" : "at most ";
  return html`<div class="panel" role="status">
    <p>${again
      ? html`<b>${most}${exact(again)} messages come again</b>, from sequence ${exact(first[0]?.seq ?? start)} to ${exact(last)}, also those that were acknowledged.`
      : html`<b>Nothing comes again.</b>`}
      ${" "}${exact(fresh)} that it has not delivered yet follow.${skipped > 0 ? html` <b class="reason">${exact(skipped)} that it has not delivered yet are skipped.</b>` : ""}</p>
    ${first.length > 0 &&
    html`<div class="scroll" tabindex="0" role="region" aria-label="The first messages"><table><thead><tr><th scope="col" class="end">Sequence</th><th scope="col">Time</th><th scope="col">Subject</th><th scope="col">Payload</th></tr></thead>
      <tbody>${first.map((one) => html`<tr key=${one.seq}><td class="end">${one.seq}</td><td>${time(one.time)}</td><td class="mono">${one.subject}</td><td class="mono"><span class="clip">${preview(one.data)}</span></td></tr>`)}</tbody></table></div>`}
  </div>`;
}
