// What the user may publish, by the permissions that the server tells ($SYS.REQ.USER.INFO). The server decides; this
// only keeps the console from offering what would be refused.
export function matches(filter, subject) {
  const wanted = filter.split(".");
  const tokens = subject.split(".");
  for (let at = 0; at < wanted.length; at += 1) {
    if (wanted[at] === ">") return tokens.length > at;
    if (at >= tokens.length || (wanted[at] !== "*" && wanted[at] !== tokens[at])) return false;
  }
  return wanted.length === tokens.length;
}

/** True when every subject that `filter` matches is matched by `wider`. */
function covers(wider, filter) {
  const wanted = wider.split(".");
  const tokens = filter.split(".");
  for (let at = 0; at < wanted.length; at += 1) {
    if (wanted[at] === ">") return tokens.length > at;
    if (at >= tokens.length || tokens[at] === ">" || (wanted[at] !== "*" && wanted[at] !== tokens[at])) return false;
  }
  return wanted.length === tokens.length;
}

/** What two filters have in common, as a filter; null when nothing. */
function common(one, other) {
  const [a, b] = [one.split("."), other.split(".")];
  const found = [];
  for (let at = 0; ; at += 1) {
    if (at === a.length && at === b.length) return found.join(".");
    if (a[at] === ">" && at < b.length) return [...found, ...b.slice(at)].join(".");
    if (b[at] === ">" && at < a.length) return [...found, ...a.slice(at)].join(".");
    if (at >= a.length || at >= b.length) return null;
    if (a[at] !== b[at] && a[at] !== "*" && b[at] !== "*") return null;
    found.push(a[at] === "*" ? b[at] : a[at]);
  }
}

/** True when some subject that `filter` matches may be published to; a deny that leaves a part of it does not count. */
export function mayPublishSome(permissions, filter) {
  const rules = permissions?.publish;
  if (!rules) return true;
  const within = rules.allow?.length ? rules.allow.map((one) => common(one, filter)).filter((one) => one !== null) : [filter];
  return within.some((part) => !rules.deny?.some((deny) => covers(deny, part)));
}

export function mayPublish(permissions, subject) {
  const rules = permissions?.publish;
  if (!rules) return true;
  const allowed = !rules.allow?.length || rules.allow.some((filter) => matches(filter, subject));
  return allowed && !rules.deny?.some((filter) => matches(filter, subject));
}
