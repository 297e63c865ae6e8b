// Names that become part of a subject. They come from links, lists and stored data, which anybody may have made: one that is
// more than a plain token would ask for, or purge, something else.
const TOKEN = /^[^\s.*>\p{Cc}]+$/u;

export const isToken = (name) => TOKEN.test(name);

/** `name`, which is one plain token. Throws for another, which `what` names. */
export function token(name, what) {
  if (!isToken(name)) throw new Error(`no ${what}: ${JSON.stringify(name)} is not one plain token`);
  return name;
}

/** True for tokens that are all plain; one may hold a star among other letters. */
export function isKey(key) {
  return key.split(".").every((one) => one && one !== "*" && one !== ">" && !/[\s\p{Cc}]/u.test(one));
}

/** The subject of a key. Throws for what is none. */
export function keySubject(prefix, key) {
  if (!isKey(key)) throw new Error(`no key: ${JSON.stringify(key)} would be another subject, or many`);
  return prefix + key;
}
