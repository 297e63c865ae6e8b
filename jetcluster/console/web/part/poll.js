// Loading: a hook that asks now and again while the page is looked at, and the notices for what takes or goes wrong.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";
import { seconds } from "../format.js";

const AGED_EVERY_MS = 1000;
const REST = 4;
/** Pauses between two loads are at least that many times as long as a load takes: large lists must not keep the servers busy. */
const LONGEST_REST_MS = 60_000;

/**
 * Calls `load()` at once, whenever `keys` change, and every `ms`, or less often where that takes long, while the page is
 * visible (`ms` 0: never again).
 * Returns { data, at, error, loading, again }: the last data, which are of `at` (of `performance.now()`), stay while the next are
 * under way, and when they cannot be had.
 */
export function usePoll(load, ms, keys = []) {
  const [state, set] = useState({ data: null, at: 0, error: null, loading: true });
  const turn = useRef(0);
  const latest = useRef(load);
  latest.current = load;

  const run = async () => {
    const mine = ++turn.current;
    try {
      const data = await latest.current();
      if (mine === turn.current) set({ data, at: performance.now(), error: null, loading: false });
      return true;
    } catch (error) {
      if (mine === turn.current) set((old) => ({ ...old, error, loading: false }));
      return false;
    }
  };

  useEffect(() => {
    let timer = 0;
    let over = false;
    set((old) => ({ ...old, loading: true }));
    const loop = async () => {
      clearTimeout(timer);
      const began = performance.now();
      const rested = !document.hidden && (await run()) ? Math.min(REST * (performance.now() - began), LONGEST_REST_MS) : 0;
      clearTimeout(timer);
      if (ms && !over) timer = setTimeout(loop, Math.max(ms, rested));
    };
    // Who comes back to the page sees it as it is now.
    const back = () => !document.hidden && timer && loop();
    document.addEventListener("visibilitychange", back);
    loop();
    return () => {
      over = true;
      turn.current += 1;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", back);
    };
  }, [ms, ...keys]);

  return { ...state, again: run };
}

export function Notice({ error }) {
  return error && html`<p class="notice bad" role="alert">${error.message ?? String(error)}</p>`;
}

/** Above data that are not current: the error, and how old they are. Nothing while all is well. `poll`: { data, at, error }. */
export function Stale({ poll }) {
  const [, drawn] = useState(0);
  const { data, at, error } = poll;
  const shown = Boolean(error && data);
  useEffect(() => {
    if (!shown) return undefined;
    const timer = setInterval(() => drawn((old) => old + 1), AGED_EVERY_MS);
    return () => clearInterval(timer);
  }, [shown]);
  if (!shown) return null;
  // The words are read out once, the age that changes is not.
  return html`<p class="notice warn stale" role="alert">Not current: ${error.message ?? String(error)}
    <span aria-live="off">What is shown is ${seconds(Math.round((performance.now() - at) / 1000))} old.</span></p>`;
}

/** Above data of many servers: `names` of those that have not answered, and `what` is missing therefore. */
export function Silent({ names, what }) {
  if (!names.length) return null;
  return html`<p class="notice warn" role="alert">No answer from ${names.join(", ")}: ${what}</p>`;
}

const MOST_NAMES = 10;

/** Above a list: the streams of it that did not answer, `names`, are told. */
export function Unanswered({ names }) {
  if (!names.length) return null;
  const more = names.length > MOST_NAMES ? ` and ${names.length - MOST_NAMES} more` : "";
  return html`<p class="notice bad" role="alert">Nobody answers for ${names.slice(0, MOST_NAMES).join(", ")}${more}.</p>`;
}

/** What stands in place of data: the error, or that it is under way. */
export function Waiting({ poll, what = "" }) {
  if (poll.error) return html`<${Notice} error=${poll.error} />`;
  return html`<p class="loading" role="status">Loading ${what}…</p>`;
}

/** Differences per second of the numbers in successive objects, by name. */
export function useRates(now, values) {
  const last = useRef({ now: 0, values: {}, rates: {} });
  const kept = last.current;
  if (values && now > kept.now) {
    const elapsed = (now - kept.now) / 1000;
    const rates = Object.create(null); // a thousand numbers added to {} one by one cost V8 ten seconds
    if (kept.now && elapsed < 120) {
      for (const [name, value] of Object.entries(values)) {
        // A counter that fell belongs to a server that has started again.
        if (name in kept.values && value !== undefined && kept.values[name] !== undefined) rates[name] = Math.max(0, value - kept.values[name]) / elapsed;
      }
    }
    last.current = { now, values, rates };
  }
  return last.current.rates;
}
