// The subjects of a stream as a tree, with the messages below each token.
import { html, useEffect, useMemo, useState } from "../vendor/ui.js";
import { counted, exact } from "../format.js";
import { Stale, usePoll, Waiting } from "../part/poll.js";
import { inSlices, pause } from "../part/slices.js";
import { to } from "../route.js";
import { js } from "../session.js";

const MAX_CHILDREN = 200;
/** Children that are drawn of one token; the filter finds the others. */
const MAX_SUBJECTS = 1_000_000;

/** Subjects with their messages: [[subject, messages], …], fetched in the pages that the server gives; `left` are not. */
async function subjectsOf(stream, filter = ">") {
  const found = [];
  for (;;) {
    const { state, total } = await js(`STREAM.INFO.${stream}`, { subjects_filter: filter, offset: found.length }, 20_000);
    await pause(); // reading 100,000 of them was a task of its own
    const part = state.subjects ?? {};
    const names = Object.keys(part);
    await pause();
    await inSlices(names.length, (at) => found.push([names[at], part[names[at]]]));
    if (!names.length || found.length >= Math.min(total ?? 0, MAX_SUBJECTS)) {
      return Object.assign(found, { left: Math.max(0, (total ?? 0) - found.length) });
    }
  }
}

/** A tree of tokens: { messages, subjects, own, children: Map }, made in slices; null once it is `over()`. */
async function treeOf(subjects, wanted = "", over = () => false) {
  const root = { messages: 0, subjects: 0, own: 0, children: new Map() };
  const text = wanted.toLowerCase();
  const whole = await inSlices(subjects.length, (at) => add(root, subjects[at], text), over);
  return whole ? root : null;
}

function add(root, [subject, messages], text) {
  if (text && !subject.toLowerCase().includes(text)) return;
  let node = root;
  node.messages += messages;
  node.subjects += 1;
  for (const token of subject.split(".")) {
    let child = node.children.get(token);
    if (!child) node.children.set(token, (child = { messages: 0, subjects: 0, own: 0, children: new Map() }));
    child.messages += messages;
    child.subjects += 1;
    node = child;
  }
  node.own += messages;
}

export function Subjects({ info }) {
  const { name } = info.config;
  const [wanted, setWanted] = useState("");
  const poll = usePoll(() => subjectsOf(name), 0, [name]);
  const [made, setMade] = useState(null);
  useEffect(() => {
    if (!poll.data) return undefined;
    let over = false;
    treeOf(poll.data, wanted, () => over).then((tree) => !over && setMade({ tree, wanted, of: poll.data }));
    return () => {
      over = true;
    };
  }, [poll.data, wanted]);
  if (!made) return html`<${Waiting} poll=${poll} what="the subjects" />`;
  return html`<${Stale} poll=${poll} /><div class="bar"><input type="search" aria-label="Filter subjects" placeholder="Part of a subject" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
      <span class="faint" role="status">${made.wanted === wanted && made.of === poll.data ? `${counted(made.tree.subjects, "subjects")}, ${counted(made.tree.messages, "messages")}` : "…"}</span>
      ${poll.data?.left > 0 && html`<span class="reason">${exact(poll.data.left)} more subjects are not loaded</span>`}
      <button type="button" onClick=${poll.again}>Load again</button></div>
    <div class="panel"><${Branch} stream=${name} node=${made.tree} path=${[]} open=${Boolean(made.wanted)} /></div>`;
}

function Branch({ stream, node, path, open }) {
  const all = useMemo(() => [...node.children].sort(([, a], [, b]) => b.messages - a.messages), [node]);
  if (!all.length) return html`<p class="faint">No subject.</p>`;
  return html`<ul class="tree">
    ${all.slice(0, MAX_CHILDREN).map(([token, child]) => html`<${Token} key=${token} ...${{ stream, token, child, path: [...path, token], open: node.children.size === 1 || (open && node.subjects <= MAX_CHILDREN) }} />`)}
    ${all.length > MAX_CHILDREN && html`<li class="faint">and ${exact(all.length - MAX_CHILDREN)} more: filter to see them</li>`}
  </ul>`;
}

function Token({ stream, token, child, path, open }) {
  const [opened, setOpened] = useState(open);
  const leaf = !child.children.size;
  const subject = path.join(".");
  const filter = leaf ? subject : child.own ? subject : `${subject}.>`;
  const label = html`<span class="mono">${token}</span> <span class="faint">${counted(child.messages, "messages")}${leaf ? "" : `, ${counted(child.subjects, "subjects")}`}</span>`;
  const show = html`<a href=${to("streams", stream, "messages", { subject: filter })} aria-label=${`show messages of ${filter}`}>show</a>`;
  if (leaf) return html`<li>${label} ${show}</li>`;
  // The link is beside the summary, not in it: a control within a control is none for a screen reader.
  return html`<li class="branch">${show}<details open=${opened} onToggle=${(event) => event.target === event.currentTarget && setOpened(event.target.open)}>
    <summary>${label}</summary>${opened && html`<${Branch} stream=${stream} node=${child} path=${path} open=${open} />`}</details></li>`;
}
