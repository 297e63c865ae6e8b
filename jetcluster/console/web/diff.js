// What differs between two texts, line by line.
const MOST_LINES = 4000;
const MOST_STEPS = 800;

/**
 * Returns [[sign, line]]: sign " " for both, "-" only in `old`, "+" only in `now`; or null for texts that are too long or
 * too different to compare. Myers' algorithm: the fewest lines change.
 */
export function diff(old, now) {
  const a = old.split("\n");
  const b = now.split("\n");
  if (a.length > MOST_LINES || b.length > MOST_LINES) return null;
  const trail = paths(a, b);
  return trail && back(a, b, trail);
}

function paths(a, b) {
  const most = Math.min(a.length + b.length, MOST_STEPS);
  let reach = new Map([[1, 0]]);
  const trail = [];
  for (let steps = 0; steps <= most; steps += 1) {
    const next = new Map();
    for (let k = -steps; k <= steps; k += 2) {
      const down = k === -steps || (k !== steps && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? (reach.get(k + 1) ?? 0) : (reach.get(k - 1) ?? 0) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      next.set(k, x);
      if (x >= a.length && x - k >= b.length) return [...trail, reach];
    }
    trail.push(reach);
    reach = next;
  }
  return null;
}

function back(a, b, trail) {
  const found = [];
  let x = a.length;
  let y = b.length;
  for (let steps = trail.length - 1; steps >= 0; steps -= 1) {
    const reach = trail[steps];
    const k = x - y;
    const down = k === -steps || (k !== steps && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const from = down ? k + 1 : k - 1;
    const startX = steps ? reach.get(from) : 0;
    const startY = steps ? startX - from : 0;
    const [middleX, middleY] = steps ? (down ? [startX, startY + 1] : [startX + 1, startY]) : [0, 0];
    while (x > middleX && y > middleY) {
      x -= 1;
      y -= 1;
      found.push([" ", a[x]]);
    }
    if (steps) found.push(down ? ["+", b[startY]] : ["-", a[startX]]);
    x = startX;
    y = startY;
  }
  return found.reverse();
}
