// Long loops in slices, between which the browser draws and listens.
const SLICE_MS = 12;
const LOOK_EVERY = 128;

/** Calls `step(at)` for 0 … count - 1; returns false, and stops, once it is `over()`. */
export async function inSlices(count, step, over = () => false) {
  let began = performance.now();
  for (let at = 0; at < count; at += 1) {
    if (at % LOOK_EVERY === 0 && performance.now() - began > SLICE_MS) {
      await pause();
      if (over()) return false;
      began = performance.now();
    }
    step(at);
  }
  return !over();
}

/** Ends the present task: the next begins behind what the browser has to do. */
export function pause() {
  return new Promise((go) => setTimeout(go));
}

/** Returns a function to await between pieces of work that wait themselves: it pauses once a slice has taken its time. */
export function pacer() {
  let began = performance.now();
  return async () => {
    if (performance.now() - began < SLICE_MS) return;
    await pause();
    began = performance.now();
  };
}
