// Keys as a tree by their dots, from one sorted list: a branch is a stretch of it, so that 100,000 keys need no nodes.

/**
 * The rows to draw: { label, depth, path, count } for a branch (its `path` ends in a dot), and { label, depth, key } for a
 * key. `opened`: the paths of branches that are open. `keys` are sorted.
 */
export function rowsOf(keys, opened) {
  const rows = [];
  const add = (from, to, depth, path) => {
    let at = from;
    while (at < to) {
      const rest = keys[at].slice(path.length);
      const dot = rest.indexOf(".");
      if (dot < 0) {
        rows.push({ label: rest, depth, key: keys[at] });
        at += 1;
        continue;
      }
      const branch = path + rest.slice(0, dot + 1);
      const end = endOf(keys, at, to, branch);
      rows.push({ label: rest.slice(0, dot), depth, path: branch, count: end - at, open: opened.has(branch) });
      if (opened.has(branch)) add(at, end, depth + 1, branch);
      at = end;
    }
  };
  add(0, keys.length, 0, "");
  return rows;
}

/** The paths of all branches. */
export function branches(keys) {
  const found = new Set();
  for (const key of keys) for (let dot = key.indexOf("."); dot >= 0; dot = key.indexOf(".", dot + 1)) found.add(key.slice(0, dot + 1));
  return found;
}

/** Where the keys that begin with `path` end; those at `from` do. */
function endOf(keys, from, to, path) {
  let low = from + 1;
  let high = to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (keys[middle].startsWith(path)) low = middle + 1;
    else high = middle;
  }
  return low;
}
