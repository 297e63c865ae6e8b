// What the servers say is wrong, from the server of this connection, which asks the others: the page and the count in the
// navigation show the same.
import { may, session, sysOne } from "./session.js";
import { effect, signal } from "./vendor/ui.js";

export const findings = signal(null);
/** { servers, unanswered, findings, counts, left_out } of the last answer, null before the first and after a logout. */

effect(() => {
  if (!session.value) findings.value = null;
});

const WORST = ["bad", "warn", "note"];

/** The subject that a user needs to be allowed. */
function findingsSubject() {
  return `$SYS.REQ.SERVER.${session.value.nc.info.server_id}.FINDINGS`;
}

export async function loadFindings() {
  const { nc } = session.value;
  if (!may(findingsSubject())) throw new Error(`this user may not publish to ${findingsSubject()}`);
  const found = await sysOne(nc.info.server_id, "FINDINGS", { cluster: true });
  if (session.value?.nc === nc) findings.value = found;
  return found;
}

/** The worst severity and how many there are of it, notes aside: { kind, count }, or null. */
export function worst(found) {
  const kind = WORST.find((one) => one !== "note" && found?.counts?.[one]);
  return kind ? { kind, count: found.counts[kind] } : null;
}
