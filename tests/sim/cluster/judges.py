"""Judges of histories: pure, fed by workloads as things happen, and by tests with planted errors. All raise Violation.

Texts are unique: each stands for one message that somebody sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from jetcluster.pipeline.checkers import fresh
from testkit.sim.deployment import Violation

ON_ITS_WAY = 1.0
"""Seconds that an ack may come after the loss of power of the machine that sent it."""
SAME = 0.001
"""Seconds within which the messages of one command are stored, which the stream knows as of one time."""


def require(is_so: bool, what: str) -> None:
    if not is_so:
        raise Violation(what)


class Failures:
    """Losses of power (`times`, which may grow), and what they may take: what was acknowledged less than `window`
    seconds before one of them (0: nothing, infinity: all of a memory stream)."""

    def __init__(self, times: Sequence[float] = (), window: float = 0.0) -> None:
        self._times = times
        self._window = window

    def forgive(self, at: float) -> bool:
        """True when a promise of that time is worth nothing, as a machine lost power just after it."""
        return self._window > 0 and any(time - self._window < at < time + ON_ITS_WAY for time in self._times)


class Exact:
    """Judges of what is known to the last detail, as nothing disturbs it."""

    @staticmethod
    def equal(what: str, found: object, wanted: object) -> None:
        require(found == wanted, f"{what}: {found}, not {wanted}")

    @staticmethod
    def between(what: str, found: float, least: float, most: float) -> None:
        """Seconds, for example."""
        require(least <= found <= most, f"{what}: {found:.3f} is not between {least:g} and {most:g}")


class Log:
    """Messages of one stream and their acks. `failures` and `window`: see `Failures`."""

    def __init__(self, failures: Sequence[float] = (), window: float = 0.0) -> None:
        self.acked: dict[int, str] = {}
        """The text that was acknowledged as stored, by sequence."""
        self.sent: set[str] = set()
        self.remembers = 120.0
        """Seconds for which the stream knows an id (`duplicate_window`, as it is by default)."""
        self._again: set[str] = set()
        self._times: dict[int, float] = {}
        self._failures = Failures(failures, window)

    def send(self, text: str, *, again: bool = False) -> None:
        """`again`: under an id, until it is acknowledged."""
        self.sent.add(text)
        if again:
            self._again.add(text)

    def refuse(self, text: str) -> None:
        """The server has said that it does not store it."""
        self.sent.discard(text)

    def forgives(self, at: float) -> bool:
        """An ack that came then is worth nothing, of a message or of anything else in the stream's log."""
        return self._failures.forgive(at)

    def forgiven(self, seq: int) -> bool:
        """Its ack is worth nothing."""
        return self.forgives(self._times[seq])

    def ack(self, seq: int, text: str, at: float = 0.0) -> None:
        before = self.acked.get(seq, text)
        if before != text:
            require(self.forgiven(seq), f"{text} and {before} were both acknowledged as {seq}")
        self.acked[seq] = text
        self._times[seq] = at

    @property
    def kept(self) -> list[int]:
        """Sequences whose acks count."""
        return [seq for seq in self.acked if not self.forgiven(seq)]

    def read(self, seq: int, text: str | None) -> None:
        """A read that began after the ack of `seq` found this; None: nothing."""
        if not self.forgiven(seq):
            require(text is not None, f"{seq} was acknowledged and is not found")
            require(text == self.acked[seq], f"{seq} is {text}, {self.acked[seq]} was acknowledged")

    def stored(
        self,
        where: str,
        contents: Mapping[int, str],
        removed: Iterable[int] = (),
        times: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """All that a replica has at the end; `removed` may be missing, and must be. `times`: when each was stored, in
        Unix nanoseconds; what nobody knows is the same for all."""
        gone = set(removed)
        for seq in self.kept:
            text = contents.get(seq)
            if seq in gone:
                require(text is None, f"{where}: {seq} was removed and is there")
                continue
            require(text == self.acked[seq], f"{where}: {seq} is {text}, {self.acked[seq]} was acknowledged")
        require(self.sent.issuperset(contents.values()), f"{where}: something is stored that nobody has sent")
        self._once(where, contents, times)

    def _once(self, where: str, contents: Mapping[int, str], times: Mapping[int, int]) -> None:
        """A message may be there twice only where it was sent again after its id was forgotten: nobody could lead for
        as long, or clocks were set."""
        before: dict[str, int] = {}
        for seq, text in sorted(contents.items()):
            at = times.get(seq, 0)
            apart = (at - before.get(text, at)) / 1e9
            forgotten = text in self._again and apart >= self.remembers - SAME
            require(text not in before or forgotten, f"{where}: a message is stored twice, {apart:.3f} s apart")
            before[text] = at


class Chain:
    """Publishes that expect something of the last message, of the stream or of one subject: what each one expected is
    what lies before it."""

    def __init__(self) -> None:
        self._expected: dict[str, int | str] = {}

    def send(self, text: str, last: int | str) -> None:
        """It is to be stored only behind this sequence (0: as the first), or behind this text."""
        self._expected[text] = last

    def stored(self, where: str, messages: Iterable[tuple[int, str]]) -> None:
        """Ascending, all there have ever been of what was expected of."""
        before: tuple[int, str] = (0, "")
        for seq, text in messages:
            last = self._expected.get(text, before[0])
            require(last in before, f"{where}: {text} at {seq} follows {before}, and was to follow {last}")
            before = seq, text


class Kept:
    """The messages that limits and rollups leave of a stream in which nothing is unknown: each one, as it is stored,
    takes others away. `per_subject`: so many of each subject stay."""

    def __init__(self, per_subject: int) -> None:
        self._per_subject = per_subject
        self._stored: dict[int, tuple[str, str]] = {}

    def ack(self, seq: int, subject: str, rollup: str = "") -> None:
        """`rollup`: "", "sub" or "all"."""
        self._stored[seq] = subject, rollup

    def left(self) -> set[int]:
        found: dict[str, list[int]] = {}
        for seq in sorted(self._stored):
            subject, rollup = self._stored[seq]
            if rollup == "all":
                found.clear()
            elif rollup == "sub":
                found.pop(subject, None)
            seqs = found.setdefault(subject, [])
            seqs.append(seq)
            del seqs[: -self._per_subject]
        return {seq for seqs in found.values() for seq in seqs}

    def stored(self, where: str, contents: Mapping[int, str]) -> None:
        left = self.left()
        require(not (gone := left - contents.keys()), f"{where}: {sorted(gone)[:10]} are gone and were to stay")
        require(not (there := contents.keys() - left), f"{where}: {sorted(there)[:10]} are there and were to go")


class Registers:
    """Keys with revisions, read and written by many. A read that began after another operation had ended finds nothing
    older than what that one knew."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[int, str]] = {}
        self._revisions: dict[str, int] = {}
        """The revision of each text."""
        self._floor: dict[str, int] = {}

    def newest(self, key: str) -> int:
        """The revision that an operation which begins now may not stay behind; 0 for none."""
        return self._floor.get(key, 0)

    def learn(self, key: str, revision: int, text: str) -> None:
        """An operation ended and knows this."""
        texts = self._texts.setdefault(key, {})
        require(texts.setdefault(revision, text) == text, f"{key}@{revision} is {texts[revision]} and {text}")
        known = self._revisions.setdefault(text, revision)
        require(known == revision, f"{key}: {text} is stored at {known} and at {revision}")
        self._floor[key] = max(self._floor.get(key, 0), revision)

    def read(self, key: str, newest: int, revision: int, text: str) -> None:
        """A read that began when `newest` was the newest found this; revision 0: nothing."""
        require(revision >= newest, f"{key}: a read found {revision}, and {newest} was known before it began")
        if revision:
            self.learn(key, revision, text)

    def read_own(self, key: str, own: int, revision: int) -> None:
        """A read on the connection that had got revision `own`."""
        require(revision >= own, f"{key}: {revision} was read on the connection that knew of {own}")

    def stored(self, where: str, key: str, history: Mapping[int, str]) -> None:
        """All revisions a replica has of a key that nothing was removed of."""
        for revision, text in self._texts.get(key, {}).items():
            found = history.get(revision)
            require(found == text, f"{where}: {key}@{revision} is {found}, it was {text}")


class Fresh:
    """Reads of every strength from one stream of which nothing is removed, by the rules of `checkers.fresh`."""

    def __init__(self) -> None:
        self.acked: dict[int, str] = {}
        """Texts by sequence."""
        self.looks: list[fresh.Look] = []
        self._sent: dict[str, float] = {}
        self._acks: list[tuple[float, int]] = []

    def send(self, text: str, at: float) -> None:
        self._sent.setdefault(text, at)

    def ack(self, seq: int, text: str, at: float) -> None:
        known = self.acked.setdefault(seq, text)
        require(known == text, f"{text} and {known} were both acknowledged as {seq}")
        self._acks.append((at, seq))

    def complete(self, contents: Mapping[int, fresh.FinalMessage]) -> None:
        """`contents`: all that the stream has in the end."""
        for seq, text in self.acked.items():
            found = contents.get(seq)
            require(found is not None and found.text == text, f"{seq} is {found}, {text} was acknowledged")
        for look, kind, text in fresh.judged(self.looks, contents, self._sent, self._acks):
            require(False, f"{kind}: {text}: {look}")


class Deliveries:
    """Deliveries of one consumer, and acks. `max_deliver` and `max_ack_pending`: 0 for no limit. `failures` and
    `window`: see `Failures`; a consumer that has lost something goes on from what it was before."""

    def __init__(
        self,
        max_deliver: int = 0,
        max_ack_pending: int = 0,
        failures: Sequence[float] = (),
        window: float = 0.0,
    ) -> None:
        self.texts: dict[int, str] = {}
        """The text that was delivered, by sequence."""
        self.confirmed: dict[int, float] = {}
        """The last delivery of the consumer that was decided when the ack was confirmed."""
        self.exhausted: set[int] = set()
        """Delivered for the last time."""
        self._max_deliver = max_deliver
        self._max_ack_pending = max_ack_pending
        self._failures = Failures(failures, window)
        self._seen: dict[tuple[int, int], float] = {}
        """The time at which a message came with this count."""
        self._taken: dict[int, float] = {}
        """The time at which a message came last."""
        self._confirmed_at: dict[int, float] = {}
        self._consumer_seqs: dict[int, int] = {}
        self._firsts: dict[int, int] = {}
        """The consumer's number of a message's first delivery, by sequence."""
        self._done: set[int] = set()
        """An ack went out for these. What comes of them again may have been under way."""
        self._done_below = 0
        """An ack of all up to here went out."""

    def take(self, seq: int, text: str, count: int, consumer_seq: int, at: float = 0.0) -> None:
        """`count`: the which delivery of the message it is; `consumer_seq`: the which of the consumer's."""
        self._forget_what_was_lost(seq, text, count, consumer_seq)
        again = consumer_seq > self.confirmed.get(seq, math.inf)
        require(not again, f"{seq} came again after its ack was confirmed")
        known = self.texts.setdefault(seq, text)
        require(known == text, f"{seq} was delivered as {known} and as {text}")
        require((seq, count) not in self._seen, f"delivery {count} of {seq} came twice")
        self._seen[seq, count] = at
        other = self._consumer_seqs.setdefault(consumer_seq, seq)
        require(other == seq, f"{other} and {seq} are both delivery {consumer_seq} of the consumer")
        self._taken[seq] = at
        if count == 1:
            self._firsts[seq] = consumer_seq
        if self._max_deliver:
            require(count <= self._max_deliver, f"{seq} came for the {count}. time of {self._max_deliver}")
            if count == self._max_deliver:
                self.exhausted.add(seq)
        if self._max_ack_pending:
            waiting = len(self.texts.keys() - self._done - self.exhausted)
            # A last delivery that was lost on its way ends a message as well, and nobody has seen its number.
            lost = max(self._consumer_seqs) - len(self._consumer_seqs) if self._max_deliver else 0
            require(waiting <= self._max_ack_pending + lost, f"{waiting} messages wait for their acks")

    def _forget_what_was_lost(self, seq: int, text: str, count: int, consumer_seq: int) -> None:
        """Forgets what this delivery would contradict and a loss of power may have taken."""
        forgive, never = self._failures.forgive, -math.inf
        if forgive(self._confirmed_at.get(seq, never)):
            del self.confirmed[seq], self._confirmed_at[seq]
        if self.texts.get(seq, text) != text and forgive(self._taken[seq]):
            del self.texts[seq]
        if forgive(self._seen.get((seq, count), never)):
            del self._seen[seq, count]
        other = self._consumer_seqs.get(consumer_seq)
        if other is not None and forgive(self._taken[other]):
            del self._consumer_seqs[consumer_seq]

    def acking(self, seq: int, *, below: bool = False) -> None:
        """An ack goes out, also for all `below`: it may count or not."""
        self._done |= {one for one in self.texts if one <= seq} if below else {seq}
        if below:
            self._done_below = max(self._done_below, seq)

    def confirm(self, seq: int, decided: int = 0, at: float = 0.0, *, below: bool = False) -> None:
        """The server has said that it has the ack. `decided`: the last delivery of the consumer's that was decided by
        then, which may still be under way."""
        for one in [one for one in self.texts if one <= seq] if below else [seq]:
            if one not in self.confirmed:
                self.confirmed[one], self._confirmed_at[one] = decided, at

    def missing(self, seqs: Iterable[int]) -> list[int]:
        """The sequences, of `seqs`, that were not delivered, ascending.

        A delivery may be lost on its way, or be met by a client that has gone. If an ack of all above it goes out
        before it is delivered again it never is: that ack said that the client has it. Such a message is not missing if
        among the consumer's numbers between its neighbours' there is one that nobody has seen, one for each."""
        unseen = sorted(set(range(1, max(self._consumer_seqs, default=0))) - self._consumer_seqs.keys())
        found: list[int] = []
        for seq in sorted(set(seqs) - self.texts.keys()):
            low = max((number for other, number in self._firsts.items() if other < seq), default=0)
            high = min((number for other, number in self._firsts.items() if other > seq), default=0)
            lost = next((number for number in unseen if low < number < high), 0)
            if lost and seq <= self._done_below:
                unseen.remove(lost)
            else:
                found.append(seq)
        return found

    def complete(self, seqs: Iterable[int]) -> None:
        missing = self.missing(seqs)
        require(not missing, f"never delivered: {missing[:10]}")


class Guarded:
    """A stream whose limits wait for an archive, and what a job has archived of it: together all that was acknowledged,
    and between them no hole."""

    def __init__(self) -> None:
        self.archived: dict[int, str] = {}
        self.end = 1
        """The sequence at which the archive ends."""

    def archive(self, end: int, found: dict[int, str]) -> None:
        """All that the stream has from the archive's end up to `end` was read."""
        self.archived |= found
        self.end = end

    def begins(self, first: int) -> None:
        """The stream's first sequence, as it was seen before the archive's end."""
        require(first <= self.end, f"the stream begins at {first}, and the archive ends at {self.end}")

    def complete(self, acked: Mapping[int, str], stored: Mapping[int, str]) -> None:
        """`stored`: of the stream in the end."""
        both = {**stored, **self.archived}
        lost = sorted(seq for seq, text in acked.items() if both.get(seq) != text)
        require(not lost, f"removed before they were archived: {lost[:10]}")
        differs = sorted(seq for seq in stored.keys() & self.archived.keys() if stored[seq] != self.archived[seq])
        require(not differs, f"archived with another content: {differs[:10]}")


class Ordered:
    """Messages of a reader without acks, which must be the stream: each once, in order, from the first on."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.last = 0

    def take(self, seq: int, text: str) -> None:
        require(seq > self.last, f"{seq} was delivered after {self.last}")
        self.last = seq
        self.texts[seq] = text

    def complete(self, contents: Mapping[int, str]) -> None:
        """`contents`: of the stream, with what lies above `last` or without."""
        below = {seq: text for seq, text in contents.items() if seq <= self.last}
        missing = sorted(below.keys() - self.texts.keys())
        require(not missing, f"skipped: {missing[:10]}")
        for seq, text in self.texts.items():
            require(contents.get(seq) == text, f"{seq} was delivered as {text}, and is {contents.get(seq)}")


class Copies:
    """Mirrors and sources; upstreams are (sequence, text)."""

    @staticmethod
    def mirrored(where: str, upstream: Mapping[int, str], contents: Mapping[int, str]) -> None:
        for seq in sorted(upstream.keys() | contents.keys()):
            mine, its = contents.get(seq), upstream.get(seq)
            require(mine == its, f"{where}: {seq} is {mine} in the mirror and {its} upstream")

    @staticmethod
    def sourced(where: str, upstreams: Iterable[Mapping[int, str]], texts: Sequence[str]) -> None:
        """`texts`: all of the stream with sources, in its order."""
        rest = list(texts)
        for upstream in upstreams:
            wanted = [upstream[seq] for seq in sorted(upstream)]
            known = set(wanted)
            found = [text for text in texts if text in known]
            require(found == wanted, f"{where}: {_difference(found, wanted)}")
            rest = [text for text in rest if text not in known]
        require(not rest, f"{where}: {rest[:5]} are of no source")


def _difference(found: Sequence[str], wanted: Sequence[str]) -> str:
    ends = min(len(found), len(wanted))
    at = next((at for at in range(ends) if found[at] != wanted[at]), ends)
    there, here = found[at : at + 3], wanted[at : at + 3]
    return f"{len(found)} of {len(wanted)} messages of a source, from {at} on {there}, not {here}"


class Batches:
    """Atomic batches: stored whole and together, or not at all."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._acked: dict[str, int] = {}

    def send(self, batch: str, texts: Sequence[str]) -> None:
        """All texts of a batch before the first is sent."""
        self._texts[batch] = list(texts)

    def ack(self, batch: str, last: int) -> None:
        self._acked[batch] = last

    def stored(self, where: str, contents: Mapping[int, str]) -> None:
        seqs = {text: seq for seq, text in contents.items()}
        require(len(seqs) == len(contents), f"{where}: a message is stored twice")
        for batch, texts in self._texts.items():
            found = [seqs[text] for text in texts if text in seqs]
            require(len(found) in (0, len(texts)), f"{where}: {len(found)} of {len(texts)} of batch {batch} are stored")
            if found:
                first = found[0]
                together = found == list(range(first, first + len(found)))
                require(together, f"{where}: batch {batch} is stored at {found}")
            last = self._acked.get(batch)
            at = found[-1] if found else None
            require(last in (None, at), f"{where}: batch {batch} was acknowledged up to {last} and ends at {at}")


class FastBatches:
    """Fast-ingest batches, whose parts count from 1: in their order, each once, and whole but for the gaps that were
    reported; where there may be none, up to the first that is missing."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._gaps_allowed: dict[str, bool] = {}
        self._settled: dict[str, int] = {}
        self._missing: dict[str, set[int]] = {}
        self._counts: dict[str, int] = {}

    def send(self, batch: str, texts: Sequence[str], *, gaps: bool) -> None:
        """All texts before the first is sent; more of one batch later."""
        self._texts.setdefault(batch, []).extend(texts)
        self._gaps_allowed[batch] = gaps
        self._missing.setdefault(batch, set())

    def settled(self, batch: str, part: int) -> None:
        """All up to this part are."""
        self._settled[batch] = max(part, self._settled.get(batch, 0))

    def gap(self, batch: str, first: int, end: int) -> None:
        """`first` to `end` - 1 never came."""
        self._missing[batch] |= set(range(first, end))

    def ended(self, batch: str, count: int) -> None:
        """It is over at this part, and all are stored unless gaps were reported."""
        self._counts[batch] = count

    def stored(self, where: str, texts: Sequence[str]) -> None:
        """`texts`: of all messages, in their order."""
        of = {text: (batch, at) for batch, parts in self._texts.items() for at, text in enumerate(parts, 1)}
        found: dict[str, list[int]] = {batch: [] for batch in self._texts}
        for text in texts:
            require(text in of, f"{where}: {text} is stored, and nobody has sent it")
            batch, at = of[text]
            found[batch].append(at)
        for batch, parts in found.items():
            require(parts == sorted(set(parts)), f"{where}: batch {batch} is stored as {parts}")
            known = set(parts) | self._missing[batch]
            lost = [at for at in range(1, self._settled.get(batch, 0) + 1) if at not in known]
            require(not lost, f"{where}: parts {lost[:5]} of batch {batch} were settled and are not stored")
            if not self._gaps_allowed[batch]:
                require(parts == list(range(1, len(parts) + 1)), f"{where}: batch {batch} has a hole: {parts}")
            count = len(parts) if self._missing[batch] else self._counts.get(batch, len(parts))
            require(
                count == len(parts), f"{where}: {len(parts)} of batch {batch} are stored, {count} were acknowledged"
            )


class Sums:
    """Counters: each total is the one before and its increment, each acknowledged increment counts once, and none that
    nobody sent."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._acked: dict[str, tuple[int, int]] = {}

    def send(self, text: str, increment: int) -> None:
        self._sent[text] = increment

    def ack(self, text: str, seq: int, total: int) -> None:
        self._acked[text] = (seq, total)

    def stored(self, where: str, messages: Iterable[tuple[int, str, int]]) -> None:
        """All (sequence, text, total) of one counter, ascending."""
        total = 0
        found: dict[str, tuple[int, int]] = {}
        for seq, text, value in messages:
            require(text in self._sent, f"{where}: {text} at {seq} was never sent")
            require(text not in found, f"{where}: {text} counts twice")
            found[text] = (seq, value)
            total += self._sent[text]
            require(value == total, f"{where}: the total at {seq} is {value}, and is to be {total}")
        for text, told in self._acked.items():
            require(found.get(text) == told, f"{where}: {text} is {found.get(text)}, {told} was acknowledged")


class Places:
    """Where the replicas of a stream are."""

    @staticmethod
    def placed(
        where: str, servers: Mapping[str, Sequence[str]], replicas: int, wanted: Sequence[str], zone: str
    ) -> None:
        """`servers`: those with a replica, with their tags; each is to have the tags `wanted`, and no two the same tag
        that begins with `zone`."""
        require(len(servers) == replicas, f"{where} is on {sorted(servers)}, and has {replicas} replicas")
        for name, tags in servers.items():
            require(set(wanted) <= set(tags), f"{where} is on {name} with {list(tags)}, and is to be on {list(wanted)}")
        zones = [tag for tags in servers.values() for tag in tags if tag.startswith(zone)]
        require(len(zones) == len(set(zones)), f"{where} is on {sorted(servers)}, in the zones {sorted(zones)}")
