// Loading: a hook that asks now and again while the page is looked at, and the notices for what takes or goes wrong.
import { html, useEffect, useRef, useState } from "../vendor/ui.js";

/**
 * Calls `load()` at once, whenever `keys` change, and every `ms` while the page is visible (0: never again).
 * Returns { data, error, loading, again }: the last data stay while the next are under way.
 */
export function usePoll(load, ms, keys = []) {
  const [state, set] = useState({ data: null, error: null, loading: true });
  const turn = useRef(0);
  const latest = useRef(load);
  latest.current = load;

  const run = async () => {
    const mine = ++turn.current;
    try {
      const data = await latest.current();
      if (mine === turn.current) set({ data, error: null, loading: false });
    } catch (error) {
      if (mine === turn.current) set((old) => ({ data: old.data, error, loading: false }));
    }
  };

  useEffect(() => {
    let timer = 0;
    let over = false;
    set((old) => ({ ...old, loading: true }));
    const loop = async () => {
      if (!document.hidden) await run();
      if (ms && !over) timer = setTimeout(loop, ms);
    };
    loop();
    return () => {
      over = true;
      turn.current += 1;
      clearTimeout(timer);
    };
  }, [ms, ...keys]);

  return { ...state, again: run };
}

export function Notice({ error }) {
  return error && html`<p class="notice bad" role="alert">${error.message ?? String(error)}</p>`;
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
        if (name in kept.values) rates[name] = Math.max(0, value - kept.values[name]) / elapsed;
      }
    }
    last.current = { now, values, rates };
  }
  return last.current.rates;
}
