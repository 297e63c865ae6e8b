import { html } from "../vendor/ui.js";
export function Streams() {
  return html`<h1>Streams</h1>`;
}
