// A button of an action that may not be possible: it stays in the order of the keys, and says why.
import { html, useMemo } from "../vendor/ui.js";
import { tell } from "./dialog.js";

let last = 0;

/** `why`: the reason why it cannot be done, or "": then `act(event)` is called. Other properties are the button's. */
export function Act({ why = "", act, children, ...rest }) {
  const id = useMemo(() => `why-${(last += 1)}`, []);
  const state = why ? { "aria-disabled": "true", "aria-describedby": id, title: why } : {};
  return html`<button type="button" ...${rest} ...${state} onClick=${(event) => (why ? tell(why, "warn") : act(event))}>${children}</button>
    ${why && html`<span id=${id} class="why" role="tooltip">${why}</span>`}`;
}
