// Uploads and downloads under way: they go on while other pages are looked at.
import { signal } from "./vendor/ui.js";

const SHOWN_EVERY_MS = 100;
export const transfers = signal([]);
/** [{ id, bucket, name, way: "upload" or "download", size, done, state: "runs", "done" or "failed", error, stop }] */
let last = 0;

/**
 * Runs `work(seen, stopped)`, shown with its progress. Returns what `work` does; undefined when it failed, which stays in the
 * list with the error.
 */
export async function transfer({ bucket, name, way, size }, work) {
  const id = ++last;
  let halted = false;
  let shown = 0;
  const change = (fields) => {
    transfers.value = transfers.value.map((one) => (one.id === id ? { ...one, ...fields } : one));
  };
  const stop = () => {
    halted = true;
  };
  transfers.value = [...transfers.value, { id, bucket, name, way, size, done: 0, state: "runs", error: null, stop, began: performance.now() }];
  watchLeaving();
  try {
    const seen = (done) => {
      if (performance.now() - shown < SHOWN_EVERY_MS) return;
      shown = performance.now();
      change({ done });
    };
    const found = await work(seen, () => halted);
    change({ done: size, state: "done", took: performance.now() - transfers.value.find((one) => one.id === id).began });
    return found;
  } catch (error) {
    change({ state: "failed", error });
    return undefined;
  } finally {
    watchLeaving();
  }
}

export function forget(id) {
  transfers.value = transfers.value.filter((one) => one.id !== id);
}

/** A page that is left ends its transfers: the browser asks before. */
function watchLeaving() {
  const runs = transfers.value.some((one) => one.state === "runs");
  (runs ? addEventListener : removeEventListener)("beforeunload", ask);
}

function ask(event) {
  event.preventDefault();
}
