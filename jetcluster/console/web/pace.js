// Long work in steps, so that the page draws and answers in between.
const STEP_MS = 12;

export function rest() {
  return new Promise((resolve) => setTimeout(resolve));
}

/** Returns a function to await between small pieces of work: it rests once a step has taken its time. */
export function pacer() {
  let began = performance.now();
  return async () => {
    if (performance.now() - began < STEP_MS) return;
    await rest();
    began = performance.now();
  };
}
