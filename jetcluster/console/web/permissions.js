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

export function mayPublish(permissions, subject) {
  const rules = permissions?.publish;
  if (!rules) return true;
  const allowed = !rules.allow?.length || rules.allow.some((filter) => matches(filter, subject));
  return allowed && !rules.deny?.some((filter) => matches(filter, subject));
}
