// What is wrong, why, and what to do: the findings of all servers, worst first. The rules are the servers' alone.
import { html, useState } from "../vendor/ui.js";
import { findings, loadFindings, worst } from "../findings_state.js";
import { counted, exact } from "../format.js";
import { Stale, usePoll, Waiting } from "../part/poll.js";
import { Chip, Figure, Figures } from "../part/words.js";
import { refine, route, to } from "../route.js";
import { session } from "../session.js";

const PAGE_MS = 10_000;
const COUNT_MS = 30_000;
const WORDS = { bad: "Bad", warn: "Warnings", note: "Notes" };
const KINDS = { bad: "bad", warn: "warn", note: "" };

/** The count beside the page's name in the navigation. */
export function FindingsCount() {
  const { error } = usePoll(loadFindings, COUNT_MS);
  const found = worst(findings.value);
  if (error) return html`<${Chip} kind="warn" title=${`not known: ${error.message}`}>?<//>`;
  return found && html`<${Chip} kind=${found.kind} title=${`${found.count} ${found.kind === "bad" ? "are bad" : "are warnings"}`}>${found.count}<//>`;
}

export function Findings() {
  const poll = usePoll(loadFindings, PAGE_MS);
  const [word, setWord] = useState("");
  if (!poll.data) return html`<h1>Findings</h1><${Waiting} poll=${poll} what="the findings" />`;
  const { counts, servers, unanswered = [], left_out: leftOut = {} } = poll.data;
  const only = route.value.query.get("severity") ?? "";
  const words = word.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = poll.data.findings.filter((one) => (!only || one.severity === only) && words.every((part) => textOf(one).includes(part)));
  return html`<h1>Findings</h1>
    <${Stale} poll=${poll} />
    <${Figures}>
      ${Object.entries(WORDS).map(([kind, name]) => html`<${Figure} key=${kind} name=${name} value=${exact(counts[kind])} metric="FINDINGS counts" kind=${counts[kind] ? KINDS[kind] : ""} />`)}
      <${Figure} name="Servers that answered" value=${servers.length} metric=${servers.join(", ")} kind=${unanswered.length ? "warn" : ""} />
    <//>
    <div class="bar">
      <input type="search" aria-label="Filter findings" placeholder="Filter" value=${word} onInput=${(event) => setWord(event.target.value)} />
      <label class="check">Show <select value=${only} onChange=${(event) => refine({ severity: event.target.value })}>
        <option value="">all</option>
        ${Object.entries(WORDS).map(([kind, name]) => html`<option key=${kind} value=${kind}>${name.toLowerCase()}</option>`)}
      </select></label>
      <span class="faint" role="status">${shown.length === poll.data.findings.length ? "" : `${exact(shown.length)} of `}${counted(poll.data.findings.length, "findings")}</span>
    </div>
    ${shown.length ? html`<ul class="findings">${grouped(shown).map((group) => html`<${Group} key=${group[0].code} group=${group} more=${leftOut[group[0].code] ?? 0} />`)}</ul>`
      : html`<p class="panel">${poll.data.findings.length ? "Nothing matches." : "Nothing is wrong."}</p>`}`;
}

function textOf(one) {
  return [one.code, one.severity, one.server, one.account, one.stream, one.consumer, one.what, one.why].join(" ").toLowerCase();
}

/** Lists of findings with one code, in the order in which they came. */
function grouped(found) {
  const groups = new Map();
  for (const one of found) {
    if (!groups.has(one.code)) groups.set(one.code, []);
    groups.get(one.code).push(one);
  }
  return [...groups.values()];
}

function Group({ group, more }) {
  const [first] = group;
  return html`<li class="panel finding" id=${first.code}>
    <div><${Chip} kind=${KINDS[first.severity]}>${first.severity}<//> <code title=${`docs/${first.page}`}>${first.code}</code></div>
    ${group.map((one, at) => html`<div key=${keyOf(one)}>
      <b>${one.what}</b> <${About} one=${one} />
      ${one.why !== group[at + 1]?.why && html`<p class="faint">${prose(one.why)}</p>`}
    </div>`)}
    ${more > 0 && html`<p class="faint">and ${exact(more)} more of this kind</p>`}
    <p><b>What to do:</b> ${prose(first.do)}</p>
    <p class="faint">More: <code>docs/${first.page}</code></p>
  </li>`;
}

/** A text with what stands in backticks as code. */
function prose(text) {
  return text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));
}

function keyOf(one) {
  return `${one.server} ${one.account} ${one.stream} ${one.consumer} ${one.what}`;
}

/** Links to the page of what a finding is about, where this user may see it. */
function About({ one }) {
  const { account, jetstream } = session.value;
  if (!one.stream) return one.server ? html`<a href=${to("cluster", "servers")}>${one.server}</a>` : "";
  const name = `${one.account} › ${one.stream}${one.consumer ? ` › ${one.consumer}` : ""}`;
  if (jetstream === "no" || one.account !== account) return html`<a href=${to("cluster", "groups")}>${name}</a>`;
  return html`<a href=${one.consumer ? to("streams", one.stream, "consumers", one.consumer) : to("streams", one.stream)}>${name}</a>`;
}
