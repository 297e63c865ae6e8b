// The login and its connection: one NATS client over a WebSocket, with what its user is and may do.
import { createInbox, credsAuthenticator, nkeyAuthenticator, wsconnect } from "./vendor/nats.js";
import { signal } from "./vendor/ui.js";
import { heard } from "./clock.js";
import { parse, stringify } from "./json.js";
import { mayPublish, mayPublishSome } from "./permissions.js";

const KEPT = "jetcluster-login";
const ASK_MS = 5000;
const GATHER_MS = 1500;
/** The most that a request to all servers takes; one that has died costs one such refresh. */
const QUIET_MS = 60;
/** Once as many servers as the last time have answered, a new one has this long. */
const FIRST_QUIET_MS = 400;
/** After each answer to the first request to all servers: how many there are is not known then. */

const PING_MS = 5000;
/** A server that hangs is noticed after two of them. */
const SETTLE_MS = 5000;
const NO_JETSTREAM = new Set([10039, 10076]);
/** Error codes: JetStream is not enabled, for this account or at all. */

export const session = signal(null);
/**
 * { nc, user, account, permissions, system, jetstream, why }, or null before a login. `system` and `jetstream`: "yes", "no" or
 * "unknown", with why they are not known.
 */
export const link = signal("");
/** "" while connected, else what the connection is doing. */
export const asked = { requests: 0, slowest: 0 };
/** For the tests: requests sent, and the slowest answer in milliseconds. */

export class ApiError extends Error {
  constructor(error) {
    super(error.description ?? String(error));
    this.code = error.code;
    this.errCode = error.err_code ?? 0;
  }
}

const base = new URL(".", location.href);
const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** What the server tells before a login: { auth_required, server_name, cluster, version }. */
export async function welcome() {
  const answer = await fetch(new URL("server.json", base), { cache: "no-store" });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.json();
}

export function kept() {
  const text = sessionStorage.getItem(KEPT);
  return text ? JSON.parse(text) : null;
}

/** Connects with { user, pass }, { token }, { creds } or { seed }; throws what the server says. */
export async function login(fields, keep = false) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const options = {
    servers: `${scheme}://${location.host}${base.pathname}nats`,
    name: "jetcluster console",
    ignoreClusterUpdates: true,
    maxReconnectAttempts: -1,
    reconnectTimeWait: 1000,
    timeout: ASK_MS,
    pingInterval: PING_MS,
  };
  if (fields.user) Object.assign(options, { user: fields.user, pass: fields.pass });
  if (fields.token) options.token = fields.token;
  if (fields.creds) options.authenticator = credsAuthenticator(encoder.encode(fields.creds));
  if (fields.seed) options.authenticator = nkeyAuthenticator(encoder.encode(fields.seed.trim()));
  if (fields.inbox) options.inboxPrefix = fields.inbox;
  const nc = await wsconnect(options);
  const who = await told(nc);
  if (keep) sessionStorage.setItem(KEPT, JSON.stringify(fields));
  session.value = { nc, inbox: fields.inbox, ...who };
  link.value = "";
  watch(nc);
  settle(nc);
}

export async function logout() {
  const { nc } = session.value ?? {};
  sessionStorage.removeItem(KEPT);
  session.value = null;
  servers = 0;
  lastHeard.clear();
  await nc?.close();
}

async function told(nc) {
  const info = await ask(nc, "$SYS.REQ.USER.INFO").catch(() => ({ data: {} }));
  const { user = "", account = "$G", permissions } = info.data ?? {};
  return { user, account, permissions, ...(await kinds(nc)) };
}

/** What the account is. */
async function kinds(nc) {
  const [system, jetstream] = await Promise.all([
    ask(nc, "$SYS.REQ.SERVER.PING.IDZ").then(() => ({ is: "yes" }), (error) => (isRefused(error) || isNobody(error) ? { is: "no" } : unknown(error))),
    // Who may not ask this may still ask for streams; what comes of it, the pages show.
    ask(nc, "$JS.API.INFO").then(verdict, (error) => (isRefused(error) ? { is: "yes", guessed: true } : unknown(error))),
  ]);
  // The system account never has JetStream, and nobody has to answer there.
  if (system.is === "yes" && (jetstream.guessed || jetstream.is === "unknown")) jetstream.is = "no";
  return { system: system.is, jetstream: jetstream.is, why: system.why ?? jetstream.why ?? "" };
}

function verdict({ error }) {
  if (!error) return { is: "yes" };
  return NO_JETSTREAM.has(error.err_code) ? { is: "no" } : unknown(new ApiError(error));
}

function unknown(error) {
  return { is: "unknown", why: explained(error, "the first questions").message };
}

const isRefused = (error) => error.name === "PermissionViolationError" || error.cause?.name === "PermissionViolationError";
const isNobody = (error) => /no ?responders/i.test(`${error.name} ${error.message}`);

/** Asks again what is not known. */
async function settle(nc) {
  const open = () => session.value?.nc === nc && (session.value.system === "unknown" || session.value.jetstream === "unknown");
  while (open()) {
    await new Promise((go) => setTimeout(go, SETTLE_MS));
    if (!open()) return;
    const found = await kinds(nc);
    if (session.value?.nc === nc) session.value = { ...session.value, ...found };
  }
}

async function watch(nc) {
  for await (const status of nc.status()) {
    if (session.value?.nc !== nc) return;
    if (status.type === "disconnect") link.value = "Connection lost, trying again…";
    if (status.type === "reconnecting") link.value = "Connecting again…";
    if (status.type === "reconnect") link.value = "";
    if (status.type === "error" && status.error?.name === "AuthorizationError") await logout();
    // A request to many is no request of the library, which would tell by itself that it was refused.
    if (status.type === "error" && status.error?.operation === "publish") for (const one of [...gathering]) one(status.error);
  }
}

async function ask(nc, subject, body = "", headers = undefined, timeout = ASK_MS) {
  const from = performance.now();
  const wall = Date.now();
  asked.requests += 1;
  const message = await nc.request(subject, typeof body === "string" ? body : stringify(body), { timeout, headers });
  asked.slowest = Math.max(asked.slowest, performance.now() - from);
  const answer = message.json();
  answers.set(answer, message);
  const told = timeOf(answer);
  if (told) heard(told, wall);
  return answer;
}

/** When a server wrote an answer, RFC 3339; those of a list say it of each entry. */
function timeOf(answer) {
  const list = [answer.streams, answer.consumers].find(Array.isArray); // both are numbers in an account's figures
  return answer.ts ?? answer.server?.time ?? list?.at(-1)?.ts;
}

const answers = new WeakMap();
/** The message that each answer was read from. */

/** An answer once more, with all digits of its whole numbers: those beyond 2^53 are BigInts. */
export function exactly(answer) {
  return parse(answers.get(answer).string());
}

function nc() {
  if (!session.value) throw new Error("not logged in");
  return session.value.nc;
}

export function may(subject) {
  return mayPublish(session.value?.permissions, subject);
}

/** Why the user may not publish to `subject`, or "". */
export function whyNot(subject) {
  return may(subject) ? "" : `This user may not publish to ${subject}.`;
}

/** Why the user may publish to no subject that one of `filters` matches, or "". */
export function whyNone(...filters) {
  const some = filters.some((filter) => mayPublishSome(session.value?.permissions, filter));
  return some ? "" : `This user may not publish to ${filters.join(" or ")}.`;
}

/** Asks the JetStream API: `js("STREAM.INFO.ORDERS", { subjects_filter: ">" })`. Throws ApiError. */
export async function js(subject, body = "", timeout = ASK_MS) {
  let answer;
  try {
    answer = await ask(nc(), `$JS.API.${subject}`, body, undefined, timeout);
  } catch (error) {
    throw explained(error, `$JS.API.${subject}`);
  }
  if (answer.error) throw new ApiError(answer.error);
  return answer;
}

const nameOf = (one) => (typeof one === "string" ? one : (one.name ?? one.config.name));
const LIST_TRIES = 20;

/**
 * All pages of a list: `jsAll("STREAM.LIST", "streams")`; `seen(got, total)` after each. `pick(entry)` is what is kept of one,
 * null for nothing at all. The array's `missing` are the names of those that did not answer. A page begins with the last entry
 * of the one before; if it does not, something in front was deleted and an entry may have slipped between both, so the list is
 * read again.
 */
export async function jsAll(subject, field, { body = {}, pick = (entry) => entry, seen = () => {} } = {}) {
  for (let tries = 0; tries < LIST_TRIES; tries++) {
    const found = await pagesOf(subject, field, body, pick, seen);
    if (found) return found;
  }
  throw new Error(`${subject} changes all the time`);
}

async function pagesOf(subject, field, body, pick, seen) {
  const entries = new Map();
  const silent = new Set();
  let offset = 0;
  let before = [];
  for (;;) {
    const page = await js(subject, { ...body, offset });
    const part = page[field] ?? [];
    const names = new Set([...part.map(nameOf), ...(page.missing ?? [])]);
    if (before.length && !before.some((name) => names.has(name))) return null;
    for (const one of part) entries.set(nameOf(one), pick(one));
    for (const name of page.missing ?? []) silent.add(name);
    seen(entries.size, page.total);
    const end = offset + names.size;
    if (!names.size || end >= page.total) {
      const found = [...entries.values()].filter((one) => one !== null);
      return Object.assign(found, { missing: [...silent].filter((name) => !entries.has(name)) });
    }
    before = names.size > 1 ? [...names] : [];
    offset = names.size > 1 ? end - 1 : end;
  }
}

/** Publishes a raw request and returns its answer as a message: { data, headers, string() }. */
export async function raw(subject, payload, headers = undefined, timeout = ASK_MS) {
  try {
    return await nc().request(subject, payload, { timeout, headers });
  } catch (error) {
    throw explained(error, subject);
  }
}

/**
 * Answers of many: returns once `isLast(message)` says so, or `expected` have come and no more in `quiet`, or after `wait`; with
 * `idle` the wait begins anew with each answer. `counted(number)` is called after `wait` with how many have come by then, the late
 * ones too. Throws when the request is refused, or when nobody is there to answer.
 */
export function gather(subject, payload, { isLast = () => false, expected = Infinity, quiet = QUIET_MS, wait = GATHER_MS, idle = false, headers = undefined, counted = null } = {}) {
  const connection = nc();
  const found = [];
  asked.requests += 1;
  return new Promise((resolve, reject) => {
    let silence = 0;
    let timer = setTimeout(() => finish(), wait);
    const refused = (error) => error.subject === subject && finish(explained(error, subject));
    gathering.add(refused);
    if (counted) setTimeout(() => subscription.unsubscribe() || counted(found.length), wait);
    const subscription = connection.subscribe(createInbox(session.value.inbox), {
      callback: (error, message) => {
        // A stored message has its sequence, whatever status its publisher gave it.
        if (error || (!message.data.length && message.headers?.code === 503 && !message.headers.has("Nats-Sequence"))) {
          finish(explained(error ?? new Error("no responders"), subject));
          return;
        }
        found.push(message);
        clearTimeout(silence);
        if (idle) {
          clearTimeout(timer);
          timer = setTimeout(() => finish(), wait);
        }
        if (isLast(message)) finish();
        else if (found.length >= expected) silence = setTimeout(() => finish(), quiet);
      },
    });
    function finish(error = null) {
      clearTimeout(timer);
      clearTimeout(silence);
      gathering.delete(refused);
      if (!counted) subscription.unsubscribe();
      if (error) reject(error);
      else resolve([...found]);
    }
    connection.publish(subject, payload, { reply: subscription.getSubject(), headers });
  });
}

const gathering = new Set();
/** Called with what the connection is refused. */
let servers = 0;
/** How many answered the last time; 0: not asked yet. */
const lastHeard = new Map();
/** Servers by name, and when each has answered, of `performance.now()`. */
const FORGOTTEN_MS = 600_000;
/** A server that has been silent for so long is not waited for any more. */

/**
 * Asks all servers: `sys("VARZ")` returns [{ server, data, error }], by name. Its `silent` are the names of those that do not
 * answer now and did before. Throws when none answers: there is one at least.
 */
export async function sys(kind, body = {}) {
  const subject = `$SYS.REQ.SERVER.PING.${kind}`;
  if (!may(subject)) throw new Error(`this user may not publish to ${subject}`);
  const wall = Date.now();
  const counted = (number) => (servers = number); // a slow one is waited for the next time, a lost one no more
  const answers = await gather(subject, JSON.stringify(body), { expected: servers || 1, quiet: servers ? QUIET_MS : FIRST_QUIET_MS, counted });
  const found = answers.map((message) => message.json());
  if (!found.length) throw new Error(`no server answers ${subject}`);
  found.sort((a, b) => a.server.name.localeCompare(b.server.name));
  for (const one of found) if (one.server.time) heard(one.server.time, wall);
  const silent = silentBeside(found.map((one) => one.server.name));
  if (found.every((one) => one.error && !one.data)) throw new ApiError(found[0].error);
  return Object.assign(found.map((one) => ({ server: one.server, data: one.data ?? one.statsz ?? {}, error: one.error })), { silent });
}

function silentBeside(names) {
  const at = performance.now();
  for (const name of names) lastHeard.set(name, at);
  for (const [name, when] of lastHeard) if (at - when > FORGOTTEN_MS) lastHeard.delete(name);
  return [...lastHeard.keys()].filter((name) => !names.includes(name));
}

export async function sysOne(id, kind, body = {}) {
  const subject = `$SYS.REQ.SERVER.${id}.${kind}`;
  let answer;
  try {
    answer = await ask(nc(), subject, body);
  } catch (error) {
    throw explained(error, subject);
  }
  if (answer.error) throw new ApiError(answer.error);
  return answer.data;
}

export function text(bytes) {
  return decoder.decode(bytes);
}

function explained(error, subject) {
  const message = String(error.message ?? error);
  if (error.operation === "subscription") return new Error(`this user may not receive answers: ${message}`);
  if (/permissions? violation/i.test(message)) return new Error(`this user may not publish to ${subject}`);
  if (/no responders/i.test(message)) return new Error(`nobody answers ${subject}: JetStream is off for this account, or the stream has no leader`);
  if (/timeout/i.test(message)) return new Error(`no answer to ${subject} in time`);
  return error instanceof Error ? error : new Error(message);
}
