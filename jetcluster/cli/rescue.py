"""`jetcluster rescue`: recovers streams whose majority is lost for good, from the stores of stopped servers.

Without `--keep` it changes nothing and shows the content of each replica, the possible losses, and the replica to keep.
With `--keep` one replica becomes the stream, after the user has typed the stream's name
(docs/membership/rescue-stream.md).
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from jetcluster import file_modes
from jetcluster.cli.common import DONE, REFUSED, fail
from jetcluster.clock import SystemClock, SystemRng
from jetcluster.cluster.rescue_record import RecordError
from jetcluster.node.rescue_store import (
    Choice,
    RescueRefusedError,
    carry_out,
    choose,
    describe,
    stores_to_write,
    unmarked,
    what_may_be_lost,
    whole_without,
)
from jetcluster.node.rescue_survey import (
    ReplicaView,
    RescueStoreError,
    StreamView,
    jetstream_folder,
    locked,
    opened,
    survey,
)

UNUSABLE = 2
Say = Callable[[str], None]


def run_rescue(
    stores: Sequence[Path],
    stream: str,
    keep: Path | None,
    *,
    dry_run: bool = False,
    yes: bool = False,
    verify: bool = False,
    say: Say = print,
    ask: Callable[[str], str] = input,
) -> int:
    """Runs the command and returns the exit code: 0 shown or done, 1 refused, 2 a store cannot be used."""
    umask = file_modes.keep_private()
    try:
        folders = list(dict.fromkeys(jetstream_folder(path).resolve() for path in [*stores, *([keep] if keep else [])]))
        if not folders:
            return fail("rescue", "name at least one store with --store", UNUSABLE)
        if keep is None:
            with locked(folders, to_write=False), opened(folders) as views:
                return _show(survey(views, stream, verify=verify), stream, say)
        if not stream:
            return fail("rescue", "name the stream with --stream ACCOUNT/NAME", REFUSED)
        return _keep(folders, stream, jetstream_folder(keep).resolve(), dry_run, yes, verify, say, ask)
    except RescueStoreError as error:
        return fail("rescue", str(error), UNUSABLE)
    except (RescueRefusedError, RecordError) as error:
        return fail("rescue", f"refused: {error}", REFUSED)
    except OSError as error:
        return fail("rescue", f"{error}; run the command again", UNUSABLE)
    finally:
        file_modes.restore(umask)


def _show(streams: list[StreamView], wanted: str, say: Say) -> int:
    if wanted and not streams:
        raise RescueRefusedError(f"there is no stream {wanted} (ACCOUNT/NAME) in these stores")
    for view in streams:
        for line in report(view):
            say(line)
    return DONE


def report(view: StreamView) -> list[str]:
    """Describes the replicas of a stream and the advice for it, line by line."""
    names = [view.names.get(peer, peer) for peer in view.voters]
    lines = [f"{view.label}: R{view.assignment.replicas}, voters {', '.join(names)}"]
    for replica in view.replicas:
        judged = "; ".join(replica.problems) if replica.problems else "whole"
        lines.append(f"  {replica.name}: {judged}; {describe(replica)}")
        if replica.left_out:
            lines.append(f"    the cluster goes on without this store: {replica.left_out}")
    lines += [f"  {name}: its store is not here" for name in view.missing]
    return lines + [f"  {text}" for text in _advice(view)]


def _advice(view: StreamView) -> list[str]:
    if len(view.voters) == 1 and view.missing:
        return [
            "its only replica is not here, so there is nothing to rescue. If that store is gone for good, so is what",
            "it held: restore the stream from a backup, or delete it and create it again",
        ]
    for begun in view.replicas:
        others = unmarked(view, begun)
        if others and not begun.left_out and not whole_without(view, begun):
            names = ", ".join(other.name for other in others)
            return [
                f"{begun.name} was made the whole stream (rescue {begun.forced}), and {names} may still vote: run the",
                f"command again with --keep {begun.store.path}",
            ]
    if len(view.voters) == 1 and all(replica.left_out for replica in view.replicas if replica.peer in view.voters):
        return ["its only replica is of a server that the cluster goes on without, so there is nothing to rescue"]
    if view.majority or (len(view.voters) == 1 and view.best is not None and not view.best.lone):
        return ["it needs no rescue: start the servers"]
    if view.best is None:
        return ["no replica of it here can be used"]
    best = view.best
    if best.lone:
        return _advice_for_lone(view, best)
    state = (
        "missing, damaged or left out" if any(replica.left_out for replica in view.replicas) else "missing or damaged"
    )
    lines = [f"a majority is {state}. Keep {best.name}, the most advanced one: {best.store.path}"]
    lost = what_may_be_lost(view, best)
    return lines + ["may be lost then:"] + [f"- {text}" for text in lost]


def _advice_for_lone(view: StreamView, best: ReplicaView) -> list[str]:
    return [
        f"{best.name} goes on with what it has once all other servers have said that they have nothing of the stream.",
        "Start the servers, and take those that will not come back off the list (nats server cluster peer-remove).",
        f"Where that cannot be, keep {best.name}: {best.store.path}",
        "may be lost then:",
        *(f"- {text}" for text in what_may_be_lost(view, best)),
    ]


def _keep(
    folders: list[Path], stream: str, kept: Path, dry_run: bool, yes: bool, verify: bool, say: Say,
    ask: Callable[[str], str],
) -> int:  # fmt: skip
    with locked(folders, to_write=not dry_run):
        with opened(folders) as views:
            streams = survey(views, stream, verify=verify)
            _show(streams, stream, say)
            (view,) = streams
            choice = choose(view, next(store for store in views if store.path == kept))
        for line in _announce(choice):
            say(line)
        if dry_run:
            say("nothing was changed (--dry-run)")
            return DONE
        if not yes and not _confirmed(choice, ask):
            raise RescueRefusedError("not confirmed; nothing was changed")
        carry_out(choice, f"{getpass.getuser()}@{socket.gethostname()}", SystemClock().time_ns(), SystemRng())
    say(
        f"done: {view.label} is what {choice.kept.name} has. Start the servers; {choice.kept.name} says in its log when"
    )
    say("the stream is in use again, and other servers fill up its replicas from there")
    return DONE


def _announce(choice: Choice) -> list[str]:
    others = [name for name in (choice.stream.names.get(p, p) for p in choice.before) if name != choice.kept.name]
    begun = "" if choice.from_start else ", which was begun"
    given_up = ", ".join(others) or "any other server"
    lines = [
        "",
        f"{choice.stream.label} is to be what {choice.kept.name} has (rescue {choice.number}{begun}). The replicas of "
        f"{given_up} are given up,",
        "with what they hold, also if their servers come back. Will be lost, or may be:",
    ]
    lines += [f"- {text}" for text in choice.lost]
    if choice.stream.best is not choice.kept and choice.stream.best is not None:
        lines.append(f"- {choice.stream.best.name} has more than {choice.kept.name}: are you sure?")
    written = ", ".join(str(store.path) for store in stores_to_write(choice))
    return [*lines, f"written to: {written}"]


def _confirmed(choice: Choice, ask: Callable[[str], str]) -> bool:
    try:
        return ask(f"Type {choice.stream.label} to go on: ").strip() == choice.stream.label
    except EOFError:
        return False
