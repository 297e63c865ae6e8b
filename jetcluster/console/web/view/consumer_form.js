// Creating and editing a consumer by form. What is valid the server says; its word stands beside the field it is about.
import { html, useState } from "../vendor/ui.js";
import { applied, changesOf } from "../edit.js";
import { open, tell } from "../part/dialog.js";
import { Field, hasWrong } from "../part/field.js";
import { Notice } from "../part/poll.js";
import { go } from "../route.js";
import { exactly, js } from "../session.js";

// A field that is `born` is given at the creation and cannot change. `of`: only for consumers of that kind.
const FIELDS = [
  { name: "description", label: "Description", kind: "text" },
  { name: "filter_subjects", label: "Filter subjects, one per line", kind: "lines", hint: "none: all subjects of the stream" },
  { name: "deliver_policy", label: "Begin at", kind: ["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"], born: true },
  { name: "opt_start_seq", label: "First sequence", kind: "number", hint: "for by_start_sequence", born: true, when: (draft) => draft.deliver_policy === "by_start_sequence" },
  { name: "opt_start_time", label: "First time", kind: "time", hint: "2026-05-01 12:00, for by_start_time", born: true, when: (draft) => draft.deliver_policy === "by_start_time" },
  { name: "ack_policy", label: "Acknowledge", kind: ["explicit", "all", "none"], hint: "explicit: each message; all: one ack counts for all before it; none: delivered is done", born: true },
  { name: "ack_wait", label: "Wait for an ack", kind: "duration", hint: "30s; later it comes again" },
  { name: "max_deliver", label: "Deliveries of a message at most", kind: "number", hint: "-1: no limit" },
  { name: "backoff", label: "Waits between deliveries, one per line", kind: "durations", hint: "like 1s; instead of one wait for acks" },
  { name: "max_ack_pending", label: "Unacknowledged at most", kind: "number", hint: "1000; -1: no limit" },
  { name: "replay_policy", label: "Pace", kind: ["instant", "original"], hint: "original: as fast as the messages came", born: true },
  { name: "inactive_threshold", label: "Delete when unused for", kind: "duration", hint: "empty: never, if it has a durable name" },
  { name: "headers_only", label: "Only headers", kind: "flag" },
  { name: "max_waiting", label: "Waiting pulls at most", kind: "number", of: "pull", born: true },
  { name: "max_batch", label: "Messages of a pull at most", kind: "number", of: "pull" },
  { name: "max_bytes", label: "Bytes of a pull at most", kind: "number", of: "pull" },
  { name: "max_expires", label: "Wait of a pull at most", kind: "duration", of: "pull" },
  { name: "priority_policy", label: "Priority of pulls", kind: ["none", "overflow", "pinned_client", "prioritized"], of: "pull" },
  { name: "priority_groups", label: "Priority groups, one per line", kind: "lines", of: "pull", when: (draft) => (draft.priority_policy ?? "none") !== "none" },
  { name: "priority_timeout", label: "A pin lasts", kind: "duration", of: "pull", when: (draft) => draft.priority_policy === "pinned_client" },
  { name: "deliver_subject", label: "Deliver to subject", kind: "text", of: "push" },
  { name: "deliver_group", label: "Deliver group", kind: "text", of: "push", hint: "subscribers of the group share the messages" },
  { name: "flow_control", label: "Flow control", kind: "flag", of: "push" },
  { name: "idle_heartbeat", label: "Heartbeat when idle", kind: "duration", of: "push", hint: "like 5s" },
  { name: "rate_limit_bps", label: "Bits per second at most", kind: "number", of: "push" },
  { name: "sample_freq", label: "Acks told in advisories", kind: "text", hint: "like 10%" },
  { name: "metadata", label: "Metadata, key=value per line", kind: "pairs" },
];

// Words of the server's errors, and the field that each is about; the first that fits.
const ABOUT = [
  ["max waiting", "max_waiting"], ["max request batch", "max_batch"], ["max request expires", "max_expires"], ["max ack pending", "max_ack_pending"],
  ["max deliver", "max_deliver"], ["backoff", "backoff"], ["ack wait", "ack_wait"], ["ack policy", "ack_policy"], ["explicit ack", "ack_policy"], ["priority group", "priority_groups"],
  ["prioritygroup", "priority_groups"], ["prioritypolicy", "priority_policy"], ["pinnedttl", "priority_timeout"], ["heartbeat", "idle_heartbeat"], ["flow control", "flow_control"],
  ["rate limit", "rate_limit_bps"], ["sampling", "sample_freq"], ["inactive threshold", "inactive_threshold"], ["filter", "filter_subjects"], ["start sequence", "opt_start_seq"],
  ["start time", "opt_start_time"], ["deliver policy", "deliver_policy"], ["deliver all", "deliver_policy"], ["deliver subject", "deliver_subject"], ["deliver group", "deliver_group"], ["replay", "replay_policy"],
  ["description", "description"], ["metadata", "metadata"], ["consumer name", "name"], ["durable name", "name"], ["already exists", "name"],
];

/** Opens the form: for a new consumer of `stream`, or for that of `info`, an answer of CONSUMER.INFO. `done()` once it has worked. */
export function edit({ stream, info = null, done = () => {} }) {
  const config = info && exactly(info).config;
  open(config ? `Edit ${config.name}` : `New consumer of ${stream}`, (shut) => html`<${Form} ...${{ stream, config, done, shut }} />`);
}

function Form({ stream, config, done, shut }) {
  const [kind, setKind] = useState(config?.deliver_subject ? "push" : "pull");
  const [draft, setDraft] = useState(() => started(config));
  const [state, set] = useState({ busy: false, error: null, about: "" });
  const change = (name, value) => setDraft((old) => ({ ...old, [name]: value }));
  const shown = FIELDS.filter((one) => (!one.of || one.of === kind) && (!one.when || one.when(draft)));

  const submit = async (event) => {
    event.preventDefault();
    set({ busy: true, error: null, about: "" });
    try {
      const wanted = config ? await edited(stream, config, draft) : asked(draft, kind);
      // A dot would make another request of it.
      if (!/^[^\s.*>\\/]+$/.test(wanted.name)) throw new Error("A consumer name is one word without . * > / \\");
      await js(`CONSUMER.CREATE.${stream}.${wanted.name}`, { stream_name: stream, config: wanted, action: config ? "update" : "create" });
      shut();
      tell(config ? `${wanted.name} is changed.` : `${wanted.name} is created.`);
      done();
      if (!config) go("streams", stream, "consumers", wanted.name);
    } catch (error) {
      const words = error.message.toLowerCase();
      const about = ABOUT.find(([part, field]) => words.includes(part) && (field === "name" || shown.some((one) => one.name === field)))?.[1] ?? "";
      set({ busy: false, error, about });
      document.getElementById(`field-${about}`)?.focus();
    }
  };
  const errorOf = (name) => (state.error && state.about === name ? state.error.message : "");
  return html`<form onSubmit=${submit}>
    <${Field} field=${{ name: "name", label: "Name", kind: "text", fixed: Boolean(config), hint: "letters, digits, - and _" }} value=${draft.name} change=${change} error=${errorOf("name")} />
    <fieldset><legend>Kind</legend><div class="ways">
      ${[["pull", "Pull: clients ask for messages"], ["push", "Push: the server sends them to a subject"]].map(
        ([one, label]) => html`<label key=${one} class="check"><input type="radio" name="kind" checked=${kind === one} disabled=${Boolean(config)} onChange=${() => setKind(one)} /> ${label}</label>`,
      )}</div></fieldset>
    <div class="fields">${shown.map((one) => html`<${Field} key=${one.name} field=${{ ...one, fixed: Boolean(config && one.born) }} value=${draft[one.name]} change=${change} error=${errorOf(one.name)} />`)}</div>
    <${Notice} error=${state.about ? null : state.error} />
    <div class="buttons"><button type="button" onClick=${shut}>Cancel</button>
      <button class="primary" disabled=${state.busy || !draft.name || hasWrong(draft)}>${config ? "Change" : "Create"}</button></div>
  </form>`;
}

function started(config) {
  if (!config) return { ack_policy: "explicit", deliver_policy: "all" };
  const { filter_subject: one, ...rest } = config;
  const metadata = Object.fromEntries(Object.entries(rest.metadata ?? {}).filter(([key]) => !isServers(key)));
  return { ...rest, filter_subjects: one ? [one] : rest.filter_subjects, metadata: Object.keys(metadata).length ? metadata : undefined };
}

const isServers = (key) => key.startsWith("_nats.");

/** What the server has of the consumer now, with what the user has changed since `config`. */
async function edited(stream, config, draft) {
  const { config: now } = exactly(await js(`CONSUMER.INFO.${stream}.${config.name}`));
  const changes = changesOf(started(config), draft);
  // What belongs to a choice goes with it, as a priority's groups.
  for (const one of FIELDS) if (one.when?.(config) && !one.when(draft)) changes[one.name] = undefined;
  const wanted = applied(started(now), started(config), changes);
  const servers = Object.entries(now.metadata ?? {}).filter(([key]) => isServers(key));
  if (servers.length) wanted.metadata = { ...wanted.metadata, ...Object.fromEntries(servers) };
  return "filter_subjects" in changes ? filtered(wanted) : { ...wanted, filter_subject: now.filter_subject, filter_subjects: now.filter_subjects };
}

/** The configuration to ask for: that of the form, without what the other kind of consumers has. */
function asked(draft, kind) {
  const wanted = Object.fromEntries(Object.entries(draft).filter(([, value]) => value !== undefined));
  for (const one of FIELDS) if (one.name in wanted && ((one.of && one.of !== kind) || (one.when && !one.when(draft)))) delete wanted[one.name];
  wanted.durable_name ??= wanted.inactive_threshold ? undefined : wanted.name;
  if (wanted.durable_name === undefined) delete wanted.durable_name;
  return filtered(wanted);
}

/** One filter is written the way that every client reads. */
function filtered(wanted) {
  const { filter_subjects: all, ...rest } = wanted;
  return all?.length === 1 ? { ...rest, filter_subject: all[0] } : wanted;
}
