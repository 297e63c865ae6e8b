// What stands in place of a page that cannot be drawn: the error, and the other pages stay as they are.
import { Component, html } from "../vendor/ui.js";
import { Notice } from "./poll.js";

/** `at` names what its children show; once it changes they are drawn again. */
export class Boundary extends Component {
  componentDidCatch(error) {
    this.setState({ error, at: this.props.at });
  }

  render({ at, children }, { error, at: failed }) {
    if (!error || at !== failed) return children;
    return html`<h1>This page cannot be shown</h1><${Notice} error=${error} />
      <p>It is a mistake in the console, or in what it was told. The other pages are there.</p>
      <div class="buttons"><button type="button" onClick=${() => this.setState({ error: null, at: null })}>Try again</button></div>`;
  }
}
