// Small words of every page: a chip with a colour, a figure with its metric, lists of terms.
import { html } from "../vendor/ui.js";

/** `kind`: "good", "warn", "bad" or "". */
export function Chip({ kind = "", title = "", children }) {
  return html`<span class=${`chip ${kind}`} title=${title}>${children}</span>`;
}

/** A figure and its name; `metric` says where it comes from (a field of a page, or a metric of Prometheus). */
export function Figure({ name, value, metric, kind = "" }) {
  return html`<div class=${`figure ${kind}`} title=${metric}><dt>${name}</dt><dd>${value}</dd></div>`;
}

export function Figures({ children }) {
  return html`<dl class="figures">${children}</dl>`;
}

/** [[term, value], …] without those whose value is undefined. */
export function Terms({ rows }) {
  return html`<dl class="terms">
    ${rows.filter(([, value]) => value !== undefined).map(([term, value]) => html`<dt key=${term}>${term}</dt><dd>${value}</dd>`)}
  </dl>`;
}

export function Tabs({ label, tabs, at, href }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${tabs.map(([id, title]) => html`<a key=${id} href=${href(id)} aria-current=${id === at ? "page" : undefined}>${title}</a>`)}
  </nav>`;
}
