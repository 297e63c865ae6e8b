"""Reads of every strength, judged against what the stream holds in the end: what an answer must have known, and shows.

All of a stream's messages are stored in one order and none is removed here, so one number says what an answer must
know: the least sequence up to which it may lack nothing. Each wish gives such a number, and the highest counts:

- linearizable: the newest sequence that anybody was told of, or read, before the request began.
- session: the newest sequence that the requester's connection was told of (`own`).
- `min_last_seq`: that sequence. `max_staleness`: the newest one that was known so many seconds before the request.
- What the answer tells of itself: the sequence that its server had applied, and an age, which is a `max_staleness` too.

`stale`: an answer lacks something up to there. `wrong value`: it shows what was not stored so, or not sent yet, or
leaves a message out. `wrong age`: it tells an age that is beyond what was asked for. `refused`: with a reason that its
request gives no cause for. A simulation judges its reads by the same functions as a history of real servers does.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jetcluster.pipeline.checkers.event import Event, Finding
from jetcluster.pipeline.checkers.log import replicas

EVENTUAL, SESSION, LINEARIZABLE = "eventual", "session", "linearizable"
BEHIND, LATE, NO_LEADER = "503 Min Last Sequence", "503 Not Caught Up", "503 No Leader"
CLOCKS = 0.23
"""Share by which a told age may be more than a request took: a bound counts clocks as if they were slow by a tenth, and
the server's may be fast by as much."""
SLACK = 0.001
"""Seconds."""


class FinalMessage(NamedTuple):
    """A message at its sequence."""

    subject: str
    text: str


class Demand(NamedTuple):
    """The wishes of a read."""

    consistency: str = EVENTUAL
    """That which holds for it, whether it or the stream's configuration says so."""
    min_last_seq: int = 0
    max_staleness: float = math.inf
    """Seconds; infinity: any age."""


class Look(NamedTuple):
    """One read and its answer. Times are true seconds."""

    client: str
    began: float
    ended: float
    wish: Demand
    own: int = 0
    """The newest sequence that this connection was told of before."""
    lasts: tuple[str, ...] = ()
    """The subjects whose last messages were asked for; without any it asked for the messages from `start` on."""
    subject: str = ""
    """Only messages of this subject; all by default."""
    start: int = 0
    most: int = 1
    """As many messages were asked for."""
    found: tuple[tuple[int, str], ...] = ()
    """(sequence, text) of the messages of the answer."""
    applied: int = -1
    """The sequence that the server tells that it had; -1: it tells nothing."""
    age: float = math.inf
    """Seconds for which newer messages may be missing, as the server tells; infinity: it does not."""
    refused: str = ""
    """The status with which it was refused."""
    unanswered: tuple[str, ...] = ()
    """Texts that this connection had sent before, and nobody knows what came of them: their acks may have come to its
    server, which counts them for its session."""

    @property
    def seen(self) -> int:
        """The newest sequence that the answer proves to be stored."""
        return max(0, self.applied, *(seq for seq, _ in self.found))


class Known:
    """The newest sequence that was known at a time, of facts (time, sequence)."""

    def __init__(self, facts: Iterable[tuple[float, int]]) -> None:
        self._times: list[float] = []
        self._newest: list[int] = []
        newest = 0
        for time, seq in sorted(facts):
            newest = max(newest, seq)
            self._times.append(time)
            self._newest.append(newest)

    def before(self, time: float) -> int:
        """Return the newest sequence that was known before `time`; 0 for none."""
        at = bisect_left(self._times, time)
        return self._newest[at - 1] if at else 0


class FinalStream:
    """A stream of which nothing is removed."""

    def __init__(self, messages: Mapping[int, FinalMessage], sent: Mapping[str, float]) -> None:
        """`sent`: when the sending of each text began."""
        self._messages, self._sent = messages, sent
        self._all = sorted(messages)
        self._of: dict[str, list[int]] = defaultdict(list)
        for seq in self._all:
            self._of[messages[seq].subject].append(seq)
        self._seqs = {messages[seq].text: seq for seq in self._all}

    def newest(self, texts: Iterable[str]) -> int:
        """Return the newest sequence of these texts; 0 where none is stored."""
        return max((self._seqs.get(text, 0) for text in texts), default=0)

    def wrong(self, look: Look) -> str:
        """Return a text on something that the answer shows and that never was so; "" for nothing."""
        for seq, text in look.found:
            message = self._messages.get(seq)
            if message is None or message.text != text:
                return f"{seq} was read as {text!r}, stored is {message and message.text!r}"
            if self._sent.get(text, math.inf) >= look.ended:
                return f"{seq} was read as {text!r} before that was sent"
            if message.subject not in (look.lasts or (look.subject or message.subject,)):
                return f"{seq} is of {message.subject}, which was not asked for"
        if look.lasts:
            subjects = [self._messages[seq].subject for seq, _ in look.found]
            return "" if len(set(subjects)) == len(subjects) else f"two last messages of one subject: {subjects}"
        wanted = self._asked(look)[: len(look.found)]
        found = [seq for seq, _ in look.found]
        return "" if found == wanted else f"{found} were read from {look.start} on, stored are {wanted}"

    def missing(self, look: Look, least: int) -> int:
        """Return the first sequence up to `least` that the answer lacks; 0 for none."""
        if not look.lasts:
            rest = self._asked(look)[len(look.found) :]
            return rest[0] if rest and rest[0] <= least else 0
        last = {self._messages[seq].subject: seq for seq, _ in look.found}
        least = max(least, *last.values(), 0) if last else least  # all are of one moment
        for subject in look.lasts:
            of = self._of.get(subject, [])
            at = bisect_right(of, least)
            if at and of[at - 1] > last.get(subject, 0):
                return of[at - 1]
        return 0

    def _asked(self, look: Look) -> list[int]:
        """Return the sequences that it asked for, of all that are there in the end."""
        of = self._of.get(look.subject, []) if look.subject else self._all
        at = bisect_left(of, look.start)
        return of[at : at + look.most]


def least(look: Look, known: Known) -> tuple[int, str]:
    """Return the sequence up to which the answer may lack nothing, and why."""
    wish = look.wish
    reasons = [(0, "")]
    if wish.consistency == LINEARIZABLE:
        reasons.append((known.before(look.began), "was known before it began"))
    if wish.consistency == SESSION:
        reasons.append((look.own, "was told to its connection"))
    reasons.append((wish.min_last_seq, "was asked for"))
    if wish.max_staleness < math.inf:
        reasons.append((known.before(look.began - wish.max_staleness), f"was known {wish.max_staleness:g} s before"))
    reasons.append((look.applied, "is what its server says that it had"))
    if look.age < math.inf:
        reasons.append((known.before(look.began - look.age), f"was known {look.age:g} s before, the age it tells"))
    return max(reasons)


def judge(look: Look, stored: FinalStream, known: Known) -> tuple[str, str]:
    """Return (kind of finding, what is wrong) of one read; two empty texts for nothing."""
    if look.refused:
        why = unfounded(look, stored)
        return ("refused", why) if why else ("", "")
    if why := stored.wrong(look):
        return "wrong value", why
    needed, reason = least(look, known)
    if lacks := stored.missing(look, needed):
        return "stale", f"it lacks {lacks}, and {needed} {reason}"
    fixed = not look.lasts and len(look.found) == look.most and look.wish.consistency == SESSION
    if needed > look.applied >= 0 and not fixed:  # a mirror has what it has by sequence, whoever asks
        return "stale", f"its server says that it had {look.applied}, and {needed} {reason}"
    wanted = look.wish.max_staleness
    if wanted < look.age < math.inf and look.age > (look.ended - look.began) * (1 + CLOCKS) + SLACK:
        return "wrong age", f"it tells {look.age:g} s, {wanted:g} s were asked for"
    return "", ""


def unfounded(look: Look, stored: FinalStream) -> str:
    """Return why its request gave no cause for a refusal; "" where it did."""
    wish = look.wish
    if look.refused.startswith(BEHIND):
        own = max(look.own, stored.newest(look.unanswered)) if wish.consistency == SESSION else 0
        wanted = max(wish.min_last_seq, own)
        return "" if 0 <= look.applied < wanted else f"{wanted} was asked for, it has {look.applied}"
    if look.refused.startswith((LATE, NO_LEADER)) and wish.consistency == EVENTUAL and wish.max_staleness == math.inf:
        return f"nothing that it asked for needs a leader: {look.refused}"
    return ""


def judged(
    looks: Sequence[Look],
    messages: Mapping[int, FinalMessage],
    sent: Mapping[str, float],
    acks: Iterable[tuple[float, int]],
) -> list[tuple[Look, str, str]]:
    """Return (read, kind, what is wrong) of the wrong reads of one stream. `messages`: all that it holds in the
    end; `acks`: (time, sequence) of what clients were told is stored."""
    stored = FinalStream(messages, sent)
    known = Known([*acks, *((look.ended, look.seen) for look in looks if not look.refused)])
    verdicts = ((look, *judge(look, stored, known)) for look in looks)
    return [verdict for verdict in verdicts if verdict[1]]


def check(ops: Sequence[Event]) -> list[Finding]:
    """Judge the kind `fresh` of `ops`, sorted by t0: one event per subject whose last message was asked for."""
    found: list[Finding] = []
    for workload in sorted({op.workload for op in ops if op.f == "fresh"}):
        mine = [op for op in ops if op.workload == workload]
        messages = {
            row.seq: FinalMessage(row.subject, row.msg_id)
            for rows in replicas(mine).values()
            for row in rows
            if row.seq
        }
        if not messages:
            continue  # no copy was read, which others tell
        writes = [op for op in mine if op.f in ("publish", "cas")]
        sent: dict[str, float] = {}
        for op in writes:
            sent[op.msg_id] = min(op.t0, sent.get(op.msg_id, math.inf))
        acks = [(op.t1, op.seq) for op in writes if op.type == "ok"]
        for look, kind, text in judged(list(_looks(mine)), messages, sent, acks):
            text = f"{look.wish.consistency} read of {look.lasts[0]} by {look.client}: {text}"
            found.append(Finding(kind, workload, text, look.began, seq=look.seen))
    return found


def _looks(ops: Sequence[Event]) -> Iterable[Look]:
    told: dict[str, int] = {}
    """A client's operations follow each other."""
    unanswered: dict[str, list[str]] = defaultdict(list)
    for op in ops:
        if op.f in ("publish", "cas") and op.type == "ok":
            told[op.client] = max(op.seq, told.get(op.client, 0))
        elif op.f in ("publish", "cas") and op.type == "info":
            unanswered[op.client].append(op.msg_id)
        elif op.f == "fresh" and op.type in ("ok", "fail"):
            wish = Demand(op.wish, max(op.expect, 0), math.inf if op.bound < 0 else op.bound)
            yield Look(
                op.client, op.t0, op.t1, wish, told.get(op.client, 0), (op.subject,),
                found=((op.seq, op.msg_id),) if op.seq else (), applied=op.applied,
                age=math.inf if op.age < 0 else op.age, refused=op.error if op.type == "fail" else "",
                unanswered=tuple(unanswered[op.client]),
            )  # fmt: skip
