"""The meta group's state machine: the streams with their peers, and the nodes.

Pure and deterministic: it takes a command and returns its verdict and a list of effects. Every decision for which two
clients can race (names, subjects, limits, group ids) is made here alone, in log order. Commands are JSON: this is the
control plane, with tens of commands per second.

    {"kind": "stream_create", "request": id, "account", "config", "peers": [..], "leader", "created": ns, "limits"}
    {"kind": "stream_update", "request": id, "account", "config", "limits", "peers"?: [..], "from"?: [..], "at"?: ns}
    {"kind": "stream_delete", "request": id, "account", "name", "gid"?}
    {"kind": "stream_restored", "request": id, "account", "name", "gid"}
    {"kind": "stream_move_cancel", "request": id, "account", "name", "revision"}
    {"kind": "stream_peers",  "request": id, "account", "name", "gid", "peers": [..], "from"?: [..]}
    {"kind": "node", "request": id, "peer", "name", "tags": [..], "jetstream": bool, "level"?: int, "key"?}
    {"kind": "node_drain", "request": id, "peer", "draining": bool}
    {"kind": "node_remove", "request": id, "peer", "name"?}
    {"kind": "node_replace", "request": id, "peer", "by"}
    {"kind": "cluster", "request": id, "id"}
    {"kind": "rescue", "request": id, "rescue": {"number", "at_ns", "by", "survivors": {..}, "lost": {..}}}
    {"kind": "stream_rescue", "request": id, "account", "name", "gid", "number", "kept", "peers": [..]}

`limits` is {"max_streams", "max_memory", "max_storage"} of the account, -1 for none; with "replicas", of its streams
with that number of replicas alone, whose bytes count once. `peers` of an update are the stream's new peers, computed
while it had the peers `from`. `request` makes a retry safe if a leader dies: a repeated id gets the first verdict.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from jetcluster import errors
from jetcluster.errors import ApiError, by_code, invalid_config
from jetcluster.meta.encoded import EncodedAssignments, compact
from jetcluster.meta.places import LimitUse, Places
from jetcluster.meta.state import (
    Assignment,
    ClusterNamed,
    ClusterRescued,
    Effect,
    MoveOrigin,
    Node,
    NodeChanged,
    NodeRemoved,
    Rescue,
    StreamAssigned,
    StreamRemoved,
    StreamUpdated,
    SubjectBook,
    node_difference,
    node_key,
    stream_difference,
)
from jetcluster.model.stream_rules import MAX_REPLICAS, merge_update, same_config
from jetcluster.raft.api import META_GROUP
from jetcluster.stream.log.bodies import load_object
from jetcluster.stream.rules import RESTORING

REMEMBERED_REQUESTS = 1024
"""Verdicts kept for retries, which follow within seconds."""
REMEMBERED_REMOVALS = 1024
REMEMBERED_RESCUES = 64

_SNAPSHOT_VERSION = 1
Result = dict[str, Any]


class MetaMachine:
    """The replicated table of streams and nodes. `apply` is deterministic: commands contain all times, ids and choices.
    All indexes are derived from the table."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_id = ""
        """The id made at the group's creation (cluster/cluster_id.py); "" until the first leader has proposed it."""
        self._digest = bytes(16)
        self._next_gid = META_GROUP + 1
        self._accounts: dict[str, dict[str, Assignment]] = {}
        self._by_gid: dict[int, Assignment] = {}
        self._subjects: dict[str, SubjectBook] = {}
        self._nodes: dict[str, Node] = {}
        self._removed: dict[str, str] = {}
        self._rescues: list[Rescue] = []
        self._verdicts: dict[str, Result] = {}
        self._places = Places()
        self._encoded = EncodedAssignments()
        self._changed: list[tuple[bool, Assignment]] = []
        """Assignments that the current command has put (True) or dropped."""

    # Reading

    @property
    def digest(self) -> str:
        """The rolling hash over all applied commands and verdicts, equal on every replica at the same index."""
        return self._digest.hex()

    @property
    def next_gid(self) -> int:
        return self._next_gid

    def assignment(self, account: str, name: str) -> Assignment | None:
        return self._accounts.get(account, {}).get(name)

    def by_gid(self, gid: int) -> Assignment | None:
        return self._by_gid.get(gid)

    def assignments(self, account: str) -> list[Assignment]:
        """Return the account's streams, sorted by name."""
        streams = self._accounts.get(account, {})
        return [streams[name] for name in sorted(streams)]

    def all_assignments(self) -> list[Assignment]:
        """Return all streams, sorted by gid."""
        return self._sorted(self._by_gid)

    def assigned_to(self, peer: str) -> list[Assignment]:
        """Return the streams of a node, sorted by gid."""
        return self._sorted(self._places.on(peer))

    @property
    def restoring(self) -> list[Assignment]:
        """The streams whose archive is not completely restored yet, sorted by gid."""
        return self._sorted(self._places.restoring)

    @property
    def misplaced(self) -> list[Assignment]:
        """The streams with fewer peers than replicas, and those with a peer that is no known node, sorted by gid."""
        return self._sorted(self._places.misplaced(self._nodes.keys()))

    def without(self, there: Set[str]) -> Set[int]:
        """Return the gids of the streams of which no node of `there` has a replica."""
        return self._places.without(there)

    def mirrors_of(self, account: str, name: str) -> list[str]:
        """Return the sorted names of the account's streams that mirror its stream `name`."""
        return self._places.mirrors_of(account, name)

    def usage(self, account: str) -> dict[int, tuple[int, int, int]]:
        """Return, by their number of replicas, how many streams the account has and the bytes that these reserve in
        memory and in files, one replica counted."""
        tiers = self._places.tiers
        kinds = ("", "memory", "file")
        found = {n: tuple(tiers[account, n, kind] for kind in kinds) for n in range(1, MAX_REPLICAS + 1)}
        return {n: (streams, memory, file) for n, (streams, memory, file) in found.items() if streams}

    def _sorted(self, gids: Iterable[int]) -> list[Assignment]:
        return [self._by_gid[gid] for gid in sorted(gids)]

    def replicas_on(self, peer: str) -> int:
        """Return the number of stream replicas assigned to the node."""
        return len(self._places.on(peer))

    def leaders_on(self, peer: str) -> int:
        """Return the number of streams whose leader hint is the node."""
        return self._places.leaders[peer]

    def reserved_on(self, peer: str, storage: str) -> int:
        """Return the bytes of the storage type that `max_bytes` of all accounts' streams reserves on the node."""
        return self._places.reserved[peer, storage]

    def replicated_on(self, peer: str) -> int:
        """Return the number of replicas assigned to the node, of streams with more than one."""
        return self._places.replicated[peer]

    def overlap_effort(self, account: str, subjects: Sequence[str]) -> int:
        """Return the number of look-ups needed to compare `subjects` with those of the account's streams."""
        book = self._subjects.get(account)
        return book.effort(subjects) if book is not None else 0

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by peer id, connected or not."""
        return self._nodes

    @property
    def removed(self) -> Mapping[str, str]:
        """Names of removed nodes by peer id; their stores never belong to the cluster again."""
        return self._removed

    @property
    def rescues(self) -> tuple[Rescue, ...]:
        """Rescues of the meta group, oldest first."""
        return tuple(self._rescues)

    @property
    def left_out(self) -> Mapping[str, Rescue]:
        """Peer id of each node given up in a rescue -> that rescue; such a store must not rejoin."""
        return {peer: rescue for rescue in self._rescues for peer in rescue.lost}

    def check_create(self, account: str, config: Mapping[str, Any], limits: Mapping[str, int]) -> Assignment | None:
        """Return the existing equal stream, or None when the stream can be created; `apply` decides. Raises
        ApiError."""
        existing = self.assignment(account, config["name"])
        if existing is not None:
            if same_config(existing.config, config):
                return existing
            raise by_code(errors.STREAM_NAME_EXISTS)
        self._check_overlap(account, config)
        self._check_limits(account, config, limits, replaced=None)
        return None

    # Applying

    def apply(self, index: int, term: int, command: bytes) -> tuple[Result, list[Effect]]:
        """Apply one committed command. Never raises, whatever the command contains.

        The result is JSON-ready: `{"error": {...}}`, or `{"revision": index, ...}` with `assignment` and `created` for
        stream commands. `term` is not used: a verdict must not depend on the leader.
        """
        assert index > self.applied_index, (index, self.applied_index)
        self.applied_index = index
        effects: list[Effect] = []
        verdict = self._decide(index, command, effects)
        hashed = hashlib.blake2b(self._digest, digest_size=16)
        hashed.update(b"%d:%d:" % (index, len(command)))
        hashed.update(command)
        hashed.update(json.dumps(verdict, sort_keys=True).encode())
        self._digest = hashed.digest()
        return self._result(verdict), effects

    def _decide(self, index: int, raw: bytes, effects: list[Effect]) -> Result:
        try:
            command = load_object(raw)
            request = str(command["request"])
            known = self._verdicts.get(request)
            if known is not None:
                return known
            handler = _HANDLERS[command["kind"]]
        except (ValueError, KeyError, TypeError) as error:
            return _refused(by_code(errors.STREAM_GENERAL, err=f"bad meta command: {type(error).__name__}"))
        before = dict(self._nodes), dict(self._removed), self._rescues, self.cluster_id, self._next_gid
        self._changed.clear()
        try:
            verdict = handler(self, index, command, effects)
        except ApiError as error:
            verdict = _refused(error)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a malformed command must not stop the group
            self._nodes, self._removed, self._rescues, self.cluster_id, self._next_gid = before
            self._take_back()
            effects.clear()
            verdict = _refused(by_code(errors.STREAM_GENERAL, err=f"bad meta command: {type(error).__name__}"))
        self._remember(request, verdict)
        return verdict

    def _take_back(self) -> None:
        """Restore the assignments from before the current command, which failed midway."""
        if not self._changed:
            return
        by_gid = self._by_gid
        for kept, assignment in reversed(self._changed):
            if kept:
                by_gid.pop(assignment.gid, None)
            else:
                by_gid[assignment.gid] = assignment
        self._set_assignments(by_gid.values())

    def _set_assignments(self, assignments: Iterable[Assignment]) -> None:
        wanted = list(assignments)
        self._accounts, self._by_gid, self._subjects = {}, {}, {}
        self._places, self._encoded = Places(), EncodedAssignments()
        for assignment in wanted:
            self._put(assignment)

    def _result(self, verdict: Result) -> Result:
        gid = verdict.get("gid")
        if gid is None:
            return dict(verdict)
        assignment = self._by_gid.get(gid)
        if assignment is None:  # a late retry of a create whose stream was deleted
            return _refused(by_code(errors.STREAM_NOT_FOUND))
        return {**verdict, "assignment": assignment.to_dict()}

    def _remember(self, request: str, verdict: Result) -> None:
        self._verdicts[request] = verdict
        if len(self._verdicts) > REMEMBERED_REQUESTS:
            del self._verdicts[next(iter(self._verdicts))]

    def _stream_create(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        account, config = command["account"], command["config"]
        existing = self.check_create(account, config, command["limits"])
        if existing is not None:
            return {"revision": index, "gid": existing.gid, "created": False}
        peers, leader = tuple(command["peers"]), command["leader"]
        if not peers or len(set(peers)) != len(peers) or leader not in peers:
            raise ValueError("peers")
        created_ns = int(command["created"])
        assignment = Assignment(
            self._next_gid, account, config["name"], config, peers, created_ns, leader, index, peers
        )
        assignment.check()
        self._next_gid += 1
        self._put(assignment)
        effects.append(StreamAssigned(assignment))
        return {"revision": index, "gid": assignment.gid, "created": True}

    def _stream_update(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        account, new = command["account"], command["config"]
        old = self._existing(account, new["name"])
        config = merge_update(old.config, new)
        if old.config.get(RESTORING):
            raise invalid_config("stream is being restored")
        peers, origin = self._where(old, config, command)
        self._check_overlap(account, config)
        self._check_limits(account, config, command["limits"], replaced=old)
        if same_config(config, old.config) and peers == old.peers:
            return {"revision": index, "gid": old.gid, "created": False}
        scaled = old.scaled_at(command.get("at")) if config["num_replicas"] != old.replicas else None
        self._replace(old, old.changed(index, config=config, peers=peers, origin=origin, scaled=scaled), effects)
        return {"revision": index, "gid": old.gid, "created": False}

    def _where(
        self, old: Assignment, config: Mapping[str, Any], command: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], MoveOrigin | None]:
        """Return the peers after an update, and the origin of its move. The proposer of another number of replicas or
        another placement chooses the peers; the choice is void when the stream's peers have changed since."""
        scaled = config["num_replicas"] != old.config["num_replicas"]
        placement = old.config.get("placement")
        if not scaled and config.get("placement") == placement:
            return old.peers, old.origin
        wanted = command.get("peers")
        if not wanted or tuple(command.get("from", old.peers)) != old.peers:
            raise by_code(errors.RECONFIGURATION_IN_PROGRESS)
        peers = tuple(map(str, wanted))
        lost = scaled and not set(peers) & set(old.peers)
        if len(peers) != config["num_replicas"] or len(set(peers)) != len(peers) or lost:
            raise ValueError("peers")
        moves = not scaled and set(peers) != set(old.peers)
        return peers, MoveOrigin(old.peers, placement, int(command.get("at", 0))) if moves else None

    def _stream_move_cancel(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        """Restore the peers and placement from before the last move. `revision`: of the move that the proposer saw."""
        old = self._existing(command["account"], command["name"])
        if old.origin is None or old.revision != int(command["revision"]):
            raise by_code(errors.NO_RECONFIGURATION)
        config = {key: value for key, value in old.config.items() if key != "placement"}
        if old.origin.placement is not None:
            config["placement"] = old.origin.placement
        self._replace(old, old.changed(index, config=config, peers=old.origin.peers, origin=None), effects)
        return {"revision": index, "gid": old.gid, "created": False}

    def _stream_restored(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        """Make a stream ordinary whose archive is completely restored."""
        old = self._existing(command["account"], command["name"])
        if old.gid != int(command["gid"]) or not old.config.get(RESTORING):
            raise by_code(errors.STREAM_NOT_FOUND)  # the restore was given up, or the stream is another one now
        config = {key: value for key, value in old.config.items() if key != RESTORING}
        self._replace(old, old.changed(index, config=config), effects)
        return {"revision": index, "gid": old.gid, "created": False}

    def _stream_delete(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        old = self._existing(command["account"], command["name"])
        if int(command.get("gid", old.gid)) != old.gid:  # another stream with that name
            raise by_code(errors.STREAM_NOT_FOUND)
        self._drop(old)
        effects.append(StreamRemoved(old))
        return {"revision": index, "removed": old.gid}

    def _stream_peers(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        old = self._existing(command["account"], command["name"])
        peers = tuple(command["peers"])
        if old.gid != command["gid"] or not peers or len(set(peers)) != len(peers):
            raise ValueError("peers")
        if tuple(command.get("from", old.peers)) != old.peers:
            raise by_code(errors.RECONFIGURATION_IN_PROGRESS)
        self._replace(old, old.changed(index, peers=peers), effects)
        return {"revision": index, "gid": old.gid, "created": False}

    def _node(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        node = Node(
            str(command["peer"]),
            str(command["name"]),
            tuple(map(str, command["tags"])),
            bool(command["jetstream"]),
            level=int(command.get("level", 0)),
            key=node_key(command.get("key", "")),
        )
        if node.peer in self._removed:
            raise by_code(errors.SERVER_NOT_MEMBER)
        known = self._nodes.get(node.peer)
        if known is not None and known.key:
            if node.key not in {"", known.key}:
                raise by_code(errors.MEMBER_CHANGE_REFUSED, err=f"another key of {node.name} is known")
            node = replace(node, key=known.key)
        if known is not None and known.draining:
            node = replace(node, draining=True)
        if known != node:
            self._nodes[node.peer] = node
            effects.append(NodeChanged(node))
        return {"revision": index}

    def _node_drain(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        known = self._nodes.get(str(command["peer"]))
        if known is None:
            raise by_code(errors.SERVER_NOT_MEMBER)
        node = replace(known, draining=bool(command["draining"]))
        if node != known:
            self._nodes[node.peer] = node
            effects.append(NodeChanged(node))
        return {"revision": index}

    def _node_remove(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        """Remove a node, also one that voted without being registered. Streams keep it among their peers: the proposer
        has moved them away already, or wants their loss to stay visible."""
        peer, name = str(command["peer"]), str(command.get("name", ""))
        node = self._nodes.pop(peer, None)
        if node is None and not name:
            raise by_code(errors.SERVER_NOT_MEMBER)
        self._removed[peer] = node.name if node is not None else name
        if len(self._removed) > REMEMBERED_REMOVALS:
            del self._removed[next(iter(self._removed))]
        if node is not None:
            effects.append(NodeRemoved(node))
        return {"revision": index}

    def _node_replace(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        """Replace a node that lost its store and came back with the peer id `by`, in every stream that has other
        replicas to catch up from. A stream with one replica keeps its lost peer: the data is gone, or still on a disk
        somewhere, and an empty stream in its place would hide that."""
        old, new = str(command["peer"]), str(command["by"])
        if old not in self._nodes:
            raise by_code(errors.SERVER_NOT_MEMBER)
        if new not in self._nodes or old == new:
            raise ValueError("by")
        moved = 0
        for assignment in self.all_assignments():
            if old in assignment.peers and len(assignment.peers) > 1 and new not in assignment.peers:
                peers, origin = _put_in(assignment.peers, old, new), assignment.origin
                if origin is not None:
                    origin = origin._replace(peers=_put_in(origin.peers, old, new))
                self._replace(assignment, assignment.changed(index, peers=peers, origin=origin), effects)
                moved += 1
        effects.append(NodeRemoved(self._nodes.pop(old)))
        return {"revision": index, "moved": moved}

    def _cluster(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        """Set the cluster's id, unless it has one."""
        if not self.cluster_id:
            self.cluster_id = str(command["id"])
            effects.append(ClusterNamed(self.cluster_id))
        return {"revision": index, "id": self.cluster_id}

    def _rescue(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        """Record a rescue; the command directly follows the configuration forced upon the group. The lost nodes stay
        in the table, like absent ones: others take their places one by one, or SERVER.REMOVE gives them up."""
        rescue = Rescue.from_dict(command["rescue"])
        if self._rescues and rescue.number <= self._rescues[-1].number:
            raise ValueError("number")
        self._rescues = [*self._rescues, rescue][-REMEMBERED_RESCUES:]
        self._removed |= rescue.lost
        while len(self._removed) > REMEMBERED_REMOVALS:
            del self._removed[next(iter(self._removed))]
        effects.append(ClusterRescued(rescue))
        return {"revision": index}

    def _stream_rescue(self, index: int, command: dict[str, Any], effects: list[Effect]) -> Result:
        """Record that one replica was made the whole stream, offline (docs/membership/rescue-stream.md). The first
        rescue counts: another rescued replica of the same stream stays out."""
        old = self._existing(command["account"], command["name"])
        number, kept = int(command["number"]), str(command["kept"])
        peers = tuple(str(peer) for peer in command["peers"] if peer != kept)
        if old.gid != int(command["gid"]) or len(set(peers)) != len(peers):
            raise ValueError("gid, peers")
        if (number, kept) == (old.rescue, old.kept):
            return {"revision": old.revision, "gid": old.gid, "created": False}
        if number <= old.rescue:
            raise by_code(errors.MEMBER_CHANGE_REFUSED, err=f"rescue {number} of the stream was done elsewhere")
        self._replace(old, old.rescued(index, number, kept, peers), effects)
        return {"revision": index, "gid": old.gid, "created": False}

    def _existing(self, account: str, name: str) -> Assignment:
        found = self.assignment(account, name)
        if found is None:
            raise by_code(errors.STREAM_NOT_FOUND)
        return found

    def _check_overlap(self, account: str, config: Mapping[str, Any]) -> None:
        book = self._subjects.get(account)
        if book is not None and book.overlaps(config.get("subjects", ()), but=config["name"]):
            raise by_code(errors.SUBJECT_OVERLAP)

    def _check_limits(
        self, account: str, config: Mapping[str, Any], limits: Mapping[str, int], replaced: Assignment | None
    ) -> None:
        """Raise ApiError when the stream exceeds `limits`, the account's at the proposing leader: apply never reads
        local configuration."""
        tier = limits.get("replicas")
        streams = self._places.tiers[account, tier, ""] if tier else len(self._accounts.get(account, ()))
        if 0 <= limits["max_streams"] <= streams and replaced is None:
            raise by_code(errors.MAX_STREAMS)
        if self._places.limit_use(account, config, limits, replaced).exceeded:
            raise by_code(10028 if config["storage"] == "memory" else 10047)

    def limit_use(self, account: str, config: Mapping[str, Any], limits: Mapping[str, int]) -> LimitUse:
        """Return what a stream, new or changed, asks for of its limit on storage."""
        return self._places.limit_use(account, config, limits, self.assignment(account, config["name"]))

    def _put(self, assignment: Assignment) -> None:
        self._changed.append((True, assignment))
        self._accounts.setdefault(assignment.account, {})[assignment.name] = assignment
        self._by_gid[assignment.gid] = assignment
        self._subjects.setdefault(assignment.account, SubjectBook()).add(assignment.name, assignment.subjects)
        self._places.put(assignment)
        self._encoded.put(assignment)

    def _drop(self, assignment: Assignment) -> None:
        self._changed.append((False, assignment))
        account = assignment.account
        self._subjects[account].remove(assignment.name)
        self._places.drop(assignment)
        self._encoded.drop(assignment.gid)
        del self._by_gid[assignment.gid]
        del self._accounts[account][assignment.name]
        if not self._accounts[account]:
            del self._accounts[account], self._subjects[account]

    def _replace(self, old: Assignment, new: Assignment, effects: list[Effect]) -> None:
        new.check()
        self._drop(old)
        self._put(new)
        effects.append(StreamUpdated(new, old))

    # Snapshots

    def snapshot(self) -> bytes:
        """Return the whole state; equal states give equal bytes."""
        head = {
            "version": _SNAPSHOT_VERSION,
            "index": self.applied_index,
            "cluster": self.cluster_id,
            "digest": self._digest.hex(),
            "next_gid": self._next_gid,
        }
        tail = {
            "nodes": [self._nodes[peer].to_dict() for peer in sorted(self._nodes)],
            "removed": list(self._removed.items()),
            "verdicts": list(self._verdicts.items()),
            **({"rescues": [rescue.to_dict() for rescue in self._rescues]} if self._rescues else {}),
        }
        streams = self._encoded.array(self.all_assignments())
        return f'{compact(head)[:-1]},"streams":{streams},{compact(tail)[1:]}'.encode()

    def prepare_snapshot(self, count: int) -> None:
        """Do a part of the work ahead of time: that of `count` assignments at most, 25 us each."""
        self._encoded.encode(count)

    def restore(self, data: bytes) -> list[Effect]:
        """Replace the state with a snapshot's; return the effects. Raises ValueError and changes nothing then."""
        try:
            state = json.loads(data)
            if state["version"] != _SNAPSHOT_VERSION:
                raise ValueError(f"snapshot version {state['version']}")
            streams = [Assignment.from_dict(item) for item in state["streams"]]
            nodes = [Node.from_dict(item) for item in state["nodes"]]
            verdicts = {str(request): dict(verdict) for request, verdict in state["verdicts"]}
            removed = {str(peer): str(name) for peer, name in state.get("removed", ())}
            rescues = [Rescue.from_dict(item) for item in state.get("rescues", ())]
            cluster_id = str(state.get("cluster", ""))
            digest, index, next_gid = bytes.fromhex(state["digest"]), int(state["index"]), int(state["next_gid"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"damaged meta snapshot: {error!r}") from error
        before, nodes_before = self._by_gid, self._nodes
        self._set_assignments(streams)
        self._changed.clear()
        self._nodes = {node.peer: node for node in nodes}
        self._verdicts, self._digest, self._removed = verdicts, digest, removed
        rescued = [ClusterRescued(rescue) for rescue in rescues if rescue not in self._rescues]
        self._rescues = rescues
        self.applied_index, self._next_gid = index, next_gid
        named = [ClusterNamed(cluster_id)] if cluster_id != self.cluster_id else []
        self.cluster_id = cluster_id
        return [*named, *rescued, *node_difference(nodes_before, self._nodes), *stream_difference(before, self._by_gid)]


def _put_in(peers: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if peer == old and new not in peers else peer for peer in peers)


def _refused(error: ApiError) -> Result:
    return {"error": error.to_dict()}


_HANDLERS = {
    "stream_create": MetaMachine._stream_create,
    "stream_update": MetaMachine._stream_update,
    "stream_delete": MetaMachine._stream_delete,
    "stream_restored": MetaMachine._stream_restored,
    "stream_move_cancel": MetaMachine._stream_move_cancel,
    "stream_peers": MetaMachine._stream_peers,
    "node": MetaMachine._node,
    "node_drain": MetaMachine._node_drain,
    "node_remove": MetaMachine._node_remove,
    "node_replace": MetaMachine._node_replace,
    "cluster": MetaMachine._cluster,
    "rescue": MetaMachine._rescue,
    "stream_rescue": MetaMachine._stream_rescue,
}
