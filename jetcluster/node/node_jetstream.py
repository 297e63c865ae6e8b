"""The storage and cluster side of a node: store, journal, Raft, mesh, JetStream and its API, wired together.

A clustered node without JetStream still has the mesh: it forwards messages and serves clients.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import ClusterOptions, Options
from jetcluster.errors import OperatorError
from jetcluster.files import exists, is_folder, make_folder
from jetcluster.logs import Logger
from jetcluster.mesh.api import MeshError, NodeInfo
from jetcluster.mesh.core import MeshCore, MeshListener
from jetcluster.mesh.identity import (
    RESCUES_NAME,
    IdentityError,
    NodeIdentity,
    left_out_advice,
    left_out_reason,
    load_identity,
    mark_left_out,
    new_id,
    save_identity,
    tampered,
    two_clusters,
)
from jetcluster.mesh.info import encode_info
from jetcluster.mesh.interest import MeshInterest
from jetcluster.mesh.mesh import NodeMesh
from jetcluster.mesh.options import MeshOptions
from jetcluster.model.limits import AccountLimits
from jetcluster.node.account_apis import AccountApis
from jetcluster.node.capacity import Capacity
from jetcluster.node.part_options import (
    balance_rules,
    batch_limits,
    credentials,
    default_folder,
    founding_of,
    max_buffered,
    mesh_tls,
    object_limits,
    route,
    router_port_error,
    shown_size,
)
from jetcluster.records import NamedTuple
from jetcluster.sealing.api import KeyringError
from jetcluster.server.listener import ListenError
from jetcluster.server.server import Server
from jetcluster.store.blocks import cache_of
from jetcluster.store.kv import KvError

if TYPE_CHECKING:
    from jetcluster.api.dispatch import JetStreamApi
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.cluster.wiring import Linked
    from jetcluster.health.node_health import NodeHealth
    from jetcluster.meta.machine import MetaMachine
    from jetcluster.meta.placement import PlacementRules
    from jetcluster.node.data_renewal import OpenStore
    from jetcluster.node.platform import Platform
    from jetcluster.node.store_keys import StoreKeys
    from jetcluster.raft.journal.journal import Journal
    from jetcluster.raft.journal.writer import DiskWaits, WaitingWriter
    from jetcluster.raft.node import RaftNode
    from jetcluster.replica.stream_replica import StreamReplica
    from jetcluster.server.leaf.nodes import LeafNodes
    from jetcluster.server.ws.port import WsPort
    from jetcluster.store.rocks_kv import RocksKv

ENTRY_OVERHEAD = 512 * 1024
"""Bytes around the largest message in a Raft entry: subject, columns, and messages published just before it."""
FRAME_OVERHEAD = 1024 * 1024
"""Bytes around it in a frame between nodes; more than an entry's. Requests and pieces of archives have it as base64."""
MIN_FRAME_BYTES = 16 * 1024 * 1024
MEET_SECONDS = 0.25
"""Longest wait for peers at the start; running peers answer within milliseconds."""
SETTLE_SECONDS = 2.0
"""Longest wait of a standalone server for its own streams."""
STEP_ASIDE_SECONDS = 2.0
GUARDED_FOLDERS = ("journal", "data")
"""Folders that the peer id vouches for."""
MAX_CLOCK_DIFFERENCE_SECONDS = 3600
"""Most by which the age of a rescue may exceed that of the store: the two ages come from different clocks."""
MARK_NAME = "journal.mark"
"""Name of the journal's mark, beside the journal and the data (`raft.journal.disk`)."""


class StorageError(OperatorError):
    """The store cannot be opened; the text is ready for the `[FTL]` line."""


class Endings(NamedTuple):
    """Callbacks by which this part ends the whole process."""

    give_up: Callable[[str], None]
    """(reason): this server must not continue."""
    storage_failed: Callable[[BaseException], None]
    """The journal could not be written."""
    start_again: Callable[[], None]
    """The process must restart."""


class NodeJetStream(MeshListener):
    """The mesh of a node, and its JetStream if it has one."""

    def __init__(self, options: Options, server: Server, platform: Platform, log: Logger, endings: Endings) -> None:
        """`options` is the object that a reload changes in place."""
        self._options = options
        self._server = server
        self._platform = platform
        self._clock = platform.clock
        self._rng = platform.rng
        self._log = log
        self._endings = endings
        self.mesh: MeshCore
        self.jetstream: JetStream | None = None
        self.cluster_port = 0
        self.store_dir = ""
        """Folder of the data; "" without JetStream."""
        self.capacity: Capacity | None = None
        """None without JetStream."""
        self._apis = AccountApis(options, server, platform, log)
        self._journal: Journal | None = None
        self._raft: RaftNode | None = None
        self._writer: WaitingWriter | None = None
        self._kv: Any = None
        self.keys: StoreKeys | None = None
        self._take_urls: dict[str, Callable[[Sequence[str]], None]] = {"client": server.set_connect_urls}
        self._started = self._clock.monotonic()
        self._created = 0
        """Unix nanoseconds when this node's store was made."""
        self.renewed_at = 0
        """Unix seconds of the last renewal of a damaged data store, as of the start; 0: none is in the quarantine."""
        self._left_out = ""
        """Advice for a node that a rescue of the cluster left out, and which stops; else ""."""

    @property
    def apis(self) -> dict[str, JetStreamApi]:
        """The APIs of the accounts where JetStream is enabled."""
        return self._apis.enabled

    @property
    def disk_waits(self) -> DiskWaits | None:
        """The journal's waits for the disk; None without JetStream."""
        return self._writer.waits if self._writer is not None else None

    async def start(self) -> None:
        """Raises StorageError, ListenError and OSError."""
        options, server, rng, files = self._options, self._server, self._rng, self._platform.files
        directory = self._open_directory() if options.jetstream.enabled else None
        if directory is not None:
            if text := left_out_reason(directory, files):
                raise StorageError(f"Can't start JetStream: {text}")
            if options.jetstream.set_aside_removed:
                from jetcluster.node.removed_store import RemovedStoreError, set_aside

                try:
                    set_aside(directory, self._log, files)
                except RemovedStoreError as error:
                    raise StorageError(f"Can't start JetStream: {error}") from error
        try:
            if directory is not None:
                self._open_keys(directory)
            identity = load_identity(
                directory, server.name, guarded=GUARDED_FOLDERS, rng=rng, clock=self._clock, files=files
            )
            key = None
            if directory is not None and options.is_clustered:
                from jetcluster.mesh.identity import load_key

                key, identity = load_key(directory, identity, rng, files)
        except (IdentityError, KeyringError, KvError) as error:
            raise StorageError(f"Can't start JetStream: {error}") from error
        self._created = identity.created
        me = NodeInfo(
            peer_id=identity.peer_id,
            name=server.name,
            boot_id=new_id(rng),
            cluster_url="",
            client_url="",
            tags=tuple(options.server_tags),
            jetstream=options.jetstream.enabled,
            cluster_id=identity.cluster if options.is_clustered else "",
            server_id=server.server_id,
            key=key.public if key is not None else "",
            sync_interval=(options.jetstream.sync_interval or 0.0) if options.jetstream.enabled else None,
        )
        try:
            encode_info(me)
            self.mesh = self._make_mesh(me, key.sign if key is not None else None)
            self.mesh.set_zone_tag(options.zone_tag)
        except ValueError as error:  # peers would refuse its INFO
            raise ListenError(f"server_name, server_tags: {error}") from error
        MeshInterest(self.mesh, server.accounts, self._clock, asyncio.get_running_loop())
        if directory is not None:
            self._start_jetstream(directory, identity)
        elif options.is_clustered:
            self._apis.start_relay(self.mesh)
        if isinstance(self.mesh, NodeMesh):
            try:
                await self.mesh.start()
            except OSError as error:
                raise ListenError(router_port_error(options.cluster.host, options.cluster.port, error)) from error
            self.cluster_port = int(self.mesh.me.cluster_url.rpartition(":")[2])
        if self.jetstream is not None:
            self.jetstream.start()

    async def prepare(self) -> None:
        """Links this node before clients are let in: peers then know its client port, if fixed, and a client learns all
        URLs at once, which it needs if it loses this server right afterwards. A standalone server leads its streams."""
        if isinstance(self.mesh, NodeMesh):
            await self.mesh.first_dials(MEET_SECONDS)
            if self._left_out:
                raise StorageError("Can't start JetStream: the cluster goes on without this node")
            if self._options.port > 0:
                await self.introduce()
        elif self.jetstream is not None:
            await self.jetstream.settle_alone(SETTLE_SECONDS)

    async def introduce(self) -> None:
        """Sends this node's client port to the linked peers, and waits a moment for their confirmation."""
        self.client_listener_is_up()
        if self.mesh.links:
            try:
                await self.mesh.sync_interest(MEET_SECONDS)
            except MeshError as error:
                self._log.debug("a peer has not confirmed this node's addresses", error=str(error))

    def client_listener_is_up(self) -> None:
        """Announces the client port; peers put it into their INFO."""
        self.mesh.update_me(replace(self.mesh.me, client_url=self._server.client_url))

    def leaf_listener_is_up(self, leafnodes: LeafNodes) -> None:
        """Sends leaves the ports of the other nodes, for when this node is away."""
        self.mesh.update_me(replace(self.mesh.me, leaf_url=leafnodes.own_url))
        self._take_urls["leaf"] = leafnodes.set_neighbours
        leafnodes.set_neighbours(self.mesh.urls["leaf"])

    def ws_listener_is_up(self, port: WsPort) -> None:
        """Sends WebSocket clients the ports of the other nodes, as other clients get theirs."""
        self.mesh.update_me(replace(self.mesh.me, ws_url=port.own_url))
        self._take_urls["ws"] = port.set_peer_urls
        port.set_peer_urls(self.mesh.urls["ws"])

    def check_tags(self, tags: Sequence[str]) -> None:
        """Raises ConfigError when the tags of a reload are too long for the mesh."""
        try:
            encode_info(replace(self.mesh.me, tags=tuple(tags)))
        except ValueError as error:
            raise ConfigError(f"server_tags: {error}") from error

    def reconfigure(self, changed: list[str]) -> None:
        """Applies a reload; the new values are in the node's options already."""
        if "client_advertise" in changed:
            self.client_listener_is_up()
        if "zone_tag" in changed:
            self.mesh.set_zone_tag(self._options.zone_tag)
        if "server_tags" in changed:
            self.mesh.update_me(replace(self.mesh.me, tags=tuple(self._options.server_tags)))
        if isinstance(self.mesh, NodeMesh) and {"cluster", "cluster.routes"} & set(changed):
            cluster = self._options.cluster
            self.mesh.set_authorization(credentials(cluster.authorization), trusted=cluster.trusted_network)
            self.mesh.set_routes(tuple(route(url) for url in cluster.routes))
            if cluster.cluster_advertise != self.mesh.options.advertise:
                self.mesh.set_advertise(cluster.cluster_advertise)
        if {"compat", "jetstream"} & set(changed) and self.jetstream is not None:
            settings = self.jetstream.services.settings
            settings.compat = self._options.compat
            settings.batch_quota.limits = batch_limits(self._options.jetstream, self._options.compat)
            settings.object_limits = object_limits(self._options.jetstream)
        self.limits_changed()
        self._apis.reconfigure(changed)

    def limits_changed(self) -> None:
        """Applies changed limits of accounts, or of this node."""
        if self.jetstream is not None:
            self.jetstream.services.settings.account_quota.limits_changed()

    def renew_tls(self, cluster: ClusterOptions) -> None:
        """Takes over the routes' TLS of a new configuration, for later handshakes. Raises ConfigError."""
        if cluster.tls is not None and isinstance(self.mesh, NodeMesh):
            self.mesh.set_tls(mesh_tls(cluster, cluster.tls))

    async def step_aside(self) -> None:
        if self.jetstream is not None:
            await self.jetstream.transfer_leaderships(STEP_ASIDE_SECONDS)

    def end_deliveries(self) -> None:
        """Ends deliveries while clients are still connected; `stop` comes later."""
        if self.jetstream is not None:
            self.jetstream.end_deliveries()

    async def stop(self) -> None:
        await self._apis.stop()
        if self.jetstream is not None:
            await self.jetstream.transfer_leaderships(STEP_ASIDE_SECONDS / 4)
            await self.jetstream.stop()
        if isinstance(self.mesh, NodeMesh):
            await self.mesh.stop()
        if self._raft is not None:
            self._raft.close()
        if self.keys is not None:
            self.keys.close()
        if self._journal is not None:
            self._journal.close()
        if self._kv is not None:
            self._kv.close()

    # ---- parts

    def _open_directory(self) -> Path:
        root = Path(self._options.jetstream.store_dir or default_folder())
        files = self._platform.files
        if exists(root, files) and not is_folder(root, files):
            raise StorageError("Can't start JetStream: storage directory is not a directory")
        directory = root / "jetstream"
        try:
            make_folder(directory, files)
        except OSError as error:
            reason = f"mkdir {error.filename}: {os.strerror(error.errno or 0).lower()}"
            raise StorageError(f"Can't start JetStream: could not create storage directory - {reason}") from error
        self.store_dir = str(directory)
        self.capacity = Capacity(self._options, directory, self._platform.physical_memory(), files)
        self._log.info("Starting JetStream")
        self._log.info(f"  Max Memory:      {shown_size(self.capacity.max_memory)}")
        self._log.info(f"  Max Storage:     {shown_size(self.capacity.max_storage)}")
        self._log.info(f'  Store Directory: "{directory}"')
        return directory

    def _make_mesh(self, me: NodeInfo, sign: Callable[[bytes], bytes] | None) -> MeshCore:
        options = self._options
        max_frame = max(MIN_FRAME_BYTES, (options.max_payload + FRAME_OVERHEAD) * 4 // 3)
        if not options.is_clustered:
            return MeshCore(me, self._clock, max_frame, logging.getLogger("jetcluster.mesh"), self)
        cluster = options.cluster
        mesh_options = MeshOptions(
            cluster_name=cluster.name,
            host=cluster.host,
            port=max(cluster.port, 0),
            held_port=options.worker is not None,
            advertise=cluster.cluster_advertise,
            authorization=credentials(cluster.authorization),
            routes=tuple(route(url) for url in cluster.routes),
            tls=mesh_tls(cluster, cluster.tls) if cluster.tls is not None else None,
            sign=sign,
            trusted_network=cluster.trusted_network,
            max_frame=max_frame,
        )
        platform = self._platform
        return NodeMesh(
            me, mesh_options, clock=platform.clock, rng=platform.rng, descriptors=platform.descriptors(), listener=self
        )

    def _start_jetstream(self, directory: Path, identity: NodeIdentity) -> None:
        from jetcluster.cluster.jetstream import JetStream
        from jetcluster.cluster.wiring import NodeSide, journal_synced
        from jetcluster.model.advisory import Advisories
        from jetcluster.node.data_renewal import DataRestarts
        from jetcluster.raft.api import META_GROUP
        from jetcluster.replica.account_quota import AccountQuota
        from jetcluster.replica.catchup import CatchUp
        from jetcluster.replica.services import Events, Knowledge, Network, Runtime, Services, Settings
        from jetcluster.replica.turn_commit import TurnCommit
        from jetcluster.stream.lead.atomic_stage import BatchQuota

        assert self.capacity is not None
        capacity = self.capacity

        server, loop = self._server, asyncio.get_running_loop()
        self._kv = self._open_data(directory)
        replicas: dict[int, StreamReplica] = {}
        known = Knowledge(replicas)
        raft, leaders, roster = self._open_raft(directory / "journal", known.machine, replicas)
        if identity.member and not raft.knows(META_GROUP):
            lost = tampered(directory, f"{directory / 'journal'} holds nothing of the meta group any more")
            raise StorageError(f"Can't start JetStream: {lost}")
        if exists(directory / RESCUES_NAME, self._platform.files):
            from jetcluster.cluster.rescue_record import tell

            tell(directory, raft.rescues, self._log, self._platform.files)
        options = self._options
        clock = raft.health.time  # the cluster's, not this machine's
        quota = AccountQuota(
            self.mesh,
            clock,
            self._log,
            lambda: known.machine.nodes,
            lambda: [replica.holding() for replica in replicas.values()],
            capacity.own_limits,
            lambda memory: capacity.max_memory if memory else capacity.max_storage,
            lambda stored: self._look_at_disk(capacity, raft.journal, stored),
            lambda: capacity.by_disk,
        )
        settings = Settings(
            quota,
            options.domain,
            options.ack_v2,
            options.system_account_name,
            options.jetstream.max_clock_drift,
            batch_quota=BatchQuota(batch_limits(options.jetstream, options.compat)),
            object_limits=object_limits(options.jetstream),
            max_buffered=max_buffered(options.jetstream),
            compat=options.compat,
        )
        advisories = Advisories(clock, self._rng, server.name, options.domain)
        cluster_name = options.cluster_name if options.is_clustered else ""
        catchup = CatchUp(self.mesh, self._clock, self._rng, {}, self._log)
        flush = lambda: None if self.jetstream is None else self.jetstream.flusher.tick()  # noqa: E731
        services = Services(
            Runtime(clock, self._rng, loop, self._log, server.budget),
            Network(self.mesh.me.peer_id, server.name, cluster_name, self.mesh, raft, leaders, catchup),
            TurnCommit(self._kv, loop, self._log, raft.turns, partial(journal_synced, raft.journal), flush),
            known,
            Events(server.account, advisories, options.system_account_name),
            settings,
        )
        restarts = DataRestarts(directory, self._clock, self._platform.files, self._log, self._endings.start_again)
        try:
            self.jetstream = JetStream(
                services,
                replicas,
                roster,
                NodeSide(
                    account_limits=self._limits,
                    placement_rules=self._placement_rules,
                    balance_rules=lambda: balance_rules(self._options.jetstream),
                    cpu_seconds=self._platform.usage.cpu_seconds,
                    leaving=lambda: server.lame_duck,
                    expected_nodes=lambda: self.mesh.expected_nodes if isinstance(self.mesh, NodeMesh) else 1,
                    settled=lambda: not isinstance(self.mesh, NodeMesh) or self.mesh.settled,
                    renew_data=restarts.renew,
                    start_again=restarts.again,
                    founding=founding_of(options.worker),
                    removed=self._removed,
                    save_cluster=lambda cluster_id, member: save_identity(
                        directory, replace(identity, cluster=cluster_id, member=member), self._platform.files
                    ),
                ),
            )
        except (ValueError, KvError) as error:
            raise StorageError(f"Can't start JetStream: the state of the meta group: {error}") from error
        self._apis.start(directory, self.jetstream, self.mesh, self._limits, capacity.own_limits)

    def _look_at_disk(self, capacity: Capacity, journal: Journal, stored: int) -> bool:
        """Returns True when this node may store more than before."""
        if not capacity.look(journal.free, stored, journal.disk_size):
            return False
        self._log.info(f"Max Storage is {shown_size(capacity.max_storage)} now: there is more room on the disk")
        return True

    def _placement_rules(self) -> PlacementRules:
        from jetcluster.meta.placement import PlacementRules

        assert self.capacity is not None
        options, capacity = self._options.jetstream, self.capacity
        return PlacementRules(options.unique_tag, options.max_ha_assets, capacity.max_memory, capacity.max_storage)

    def _open_keys(self, directory: Path) -> None:
        """Opens the keys of a store that is, or will be, encrypted. Raises KeyringError, KvFullError and OSError."""
        from jetcluster.node.data_renewal import needs_key, settle, stay_plain

        options, platform = self._options.jetstream, self._platform
        if options.encryption_key or needs_key(directory, platform.files):
            from jetcluster.node.store_keys import StoreKeys

            self.keys = StoreKeys(directory, options, platform, self._log)
        else:
            stay_plain(directory, self._log, platform.files)
        settle(directory, platform.files)

    def _open_data(self, directory: Path) -> RocksKv:
        """Raises StorageError."""
        from jetcluster.node.data_renewal import last_renewed, open_data

        platform = self._platform
        opens: OpenStore = platform.open_store
        try:
            now = platform.clock.time_ns() / 1e9
            if self.keys is not None:
                self.keys.encrypt_data()
                opens = self.keys.open_store
            kv, renewal = open_data(directory, self._options.is_clustered, now, platform.files, opens)
            self.renewed_at = last_renewed(directory, now, platform.files)
        except (KvError, OSError) as error:
            raise StorageError(f"Can't start JetStream: {error}") from error
        cache_of(kv, platform.physical_memory())
        if renewal is not None:
            text = "the data store was damaged and is renewed: streams that were whole are kept, the others are fetched"
            old = str(renewal.quarantine)
            self._log.error(
                text, damage=renewal.reason, kept=len(renewal.kept), fetched=len(renewal.left), quarantine=old
            )
        return kv

    def _open_raft(self, directory: Path, machine: MetaMachine, replicas: dict[int, StreamReplica]) -> Linked:
        """Opens the journal, whose content decides what this node may vouch for. Raises StorageError."""
        from jetcluster.cluster.wiring import link_raft
        from jetcluster.raft.journal.disk import FileDisk, FileMark
        from jetcluster.raft.journal.journal import Journal

        loop, platform = asyncio.get_running_loop(), self._platform
        sync_interval = self._options.jetstream.sync_interval
        try:
            disk = FileDisk(directory, sync_interval is None, platform.files)
            self._writer = platform.open_writer(loop)
            options = platform.journal_options(directory, sync_interval)
            mark = FileMark(directory.with_name(MARK_NAME), self.mesh.me.peer_id, platform.files)
            self._journal = Journal(
                disk, self._writer, loop, self._rng, options, self._endings.storage_failed, mark, platform.stopwatch,
                self._kv.compaction_bytes, self.keys.segments if self.keys is not None else None,
            )  # fmt: skip
            self._journal.open()
            if self.keys is not None:
                self.keys.leave_plain(self._journal, loop)
        except OSError as error:
            raise StorageError(f"Can't start JetStream: {directory}: {error.strerror}") from error
        except OperatorError as error:  # FormatError, KeyringError
            raise StorageError(f"Can't start JetStream: {directory}: {error}") from error
        for damage in self._journal.damage:
            text = "Raft journal is damaged; what is missing is fetched from peers, where a group has any"
            self._log.error(text, damage=str(damage))
        usual = platform.raft_config()
        config = replace(
            usual,
            max_entry=max(usual.max_entry, self._options.max_payload + ENTRY_OVERHEAD),
            lease=self._options.jetstream.read_lease,
            clock_drift=self._options.jetstream.max_clock_drift,
        )
        health = self._health(self._journal)
        self._raft, leaders, roster = link_raft(
            self.mesh, self._journal, machine, replicas,
            self._clock, self._rng, loop, config, self._raft_report, health,
        )  # fmt: skip
        return self._raft, leaders, roster

    def urls_changed(self, kind: str, urls: tuple[str, ...]) -> None:
        if kind in self._take_urls:
            self._take_urls[kind](urls)

    def left_out(self, age: int, said: str) -> None:
        """Stops this node if a voter's signed report of a rescue without it, `age` seconds ago, is right."""
        group = self.jetstream.meta.group if self.jetstream is not None else None
        if self._left_out or not self.store_dir:
            return
        directory = Path(self.store_dir)
        lived = (self._clock.time_ns() - self._created) // 10**9
        if age > max(lived, 0) + MAX_CLOCK_DIFFERENCE_SECONDS:  # it was never a part of the rescued cluster
            self._log.error("a member says that this node was left out before its store was made", said=said)
            return
        if group is not None and group.leader is not None and self._clock.monotonic() - self._started > age:
            self._log.error(two_clusters(said))
            return
        self._left_out = left_out_advice(directory, said)
        try:
            mark_left_out(directory, self._left_out, self._platform.files)
        except OSError as error:
            self._log.error("the store cannot be marked as left out", error=str(error))
        self._endings.give_up(self._left_out)

    def _removed(self) -> None:
        """Starts again without the store of a server that came back after its removal, where that is wanted."""
        if self._options.jetstream.set_aside_removed:
            from jetcluster.node.removed_store import leave

            leave(Path(self.store_dir), self._log, self._endings.start_again, self._platform.files)

    def _health(self, journal: Journal) -> NodeHealth:
        from jetcluster.health.cluster_clock import ClusterClock
        from jetcluster.health.node_health import Aspect, NodeHealth

        def moved(seconds: float) -> None:
            self._log.error("the cluster's time is another one now: a majority of the clocks agrees", moved=seconds)

        clock = self._clock
        others = partial(journal.other_voters, self.mesh.me.peer_id)
        health = NodeHealth(clock, ClusterClock(clock, on_moved=moved, others=others))
        health.watch(Aspect.MEMORY, self._platform.memory_trouble())
        health.watch(Aspect.DESCRIPTORS, self._server.crowd.trouble)
        return health

    def _raft_report(self, gid: int, text: str) -> None:
        self._log.warning(f"Raft group {gid}: {text}")
        if self.jetstream is not None:
            self.jetstream.group_reported(gid)

    def _limits(self, account: str) -> AccountLimits:
        assert self.capacity is not None
        return self.capacity.limits(account, lambda: len(self.jetstream.meta.machine.nodes) if self.jetstream else 1)
