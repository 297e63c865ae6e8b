// An edit of a configuration changes what its user has changed, and nothing else.
import { stringify } from "./json.js";

const same = (one, other) => stringify([one]) === stringify([other]);

/** The fields in which `draft` differs from `before`: { name: value }, undefined for one that is gone. */
export function changesOf(before, draft) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(draft)])];
  return Object.fromEntries(names.filter((name) => !same(before[name], draft[name])).map((name) => [name, draft[name]]));
}

/** `now`, which is what the server has, with `changes` to what was `before`. Throws when somebody has changed one of them since. */
export function applied(now, before, changes) {
  for (const name of Object.keys(changes)) {
    if (same(now[name], before[name]) || same(now[name], changes[name])) continue;
    throw new Error(`${name} has been changed meanwhile, to ${stringify(now[name]) ?? "nothing"}: close this and edit it again`);
  }
  return { ...now, ...changes };
}
