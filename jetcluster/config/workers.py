"""Workers: several node processes that serve the ports of one machine, each with its own journal, store and event loop.

`plan_of` is the supervisor's part, the places of the workers; `become` is a worker's: it turns the machine's options
into its own. Worker 0 is the server that a single process would be, with the configured name and store, so that a
server can begin to use workers. Where no cluster is configured the workers are one, on the loopback address, with a
password that only they know.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from jetcluster.config.options import Options, WorkerOptions
from jetcluster.model.machines import tags_of

MAX_WORKERS: Final = 64
ENVIRONMENT: Final = "JETCLUSTER_WORKER"
"""The variable in which the supervisor gives a worker its place, as JSON: others cannot read it, unlike a flag."""
LOOPBACK: Final = "127.0.0.1"
USER: Final = "worker"
"""The user of the routes between the workers of one machine."""


def workers_of(text: str) -> int:
    """Returns the number of a flag or a key, 0 for "auto". Raises ValueError; its text follows the name."""
    if text == "auto":
        return 0
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MAX_WORKERS):
        raise ValueError(f'must be "auto" or a number from 1 to {MAX_WORKERS}')
    return int(text)


def count_of(workers: int, quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Returns the number of processes for the option `workers`; 0 is one per core that this process may use, by its
    affinity and its container's `quota`."""
    return workers or max(min(len(os.sched_getaffinity(0)), _cores_of(quota), MAX_WORKERS), 1)


def _cores_of(quota: Path) -> int:
    """Returns the cores of a file cpu.max, "<microseconds> <period>", rounded up; MAX_WORKERS without a limit."""
    try:
        most, period = quota.read_text().split()
        return -(-int(most) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # "max": none
        return MAX_WORKERS


def folder_of(store_dir: str, index: int) -> str:
    """Returns the `store_dir` of a worker."""
    root = Path(store_dir) if store_dir else Path(tempfile.gettempdir()) / "nats"
    return str(root / f"worker-{index}") if index else store_dir


def problem_of_store(options: Options, count: int) -> str | None:
    """Returns why `count` processes must not use the store as it is; None: they may. Streams of a worker that is not
    started would be away without anybody being told. In a cluster worker 0 may begin with an empty folder, as any
    server may: the others know what was agreed on."""
    if not options.jetstream.enabled:
        return None
    root = Path(folder_of(options.jetstream.store_dir, 1)).parent
    if not root.is_dir():
        return None
    found = sorted(
        int(entry.name.removeprefix("worker-"))
        for entry in root.iterdir()
        if entry.name.removeprefix("worker-").isdigit() and (entry / "jetstream").is_dir()
    )
    over = [index for index in found if index >= count]
    if over:
        return (
            f"{root} has data of worker {over[-1]}, and workers is {count}: set workers to {over[-1] + 1}, or "
            "decommission the workers that are to go and remove their folders"
        )
    if found and not options.is_clustered and not (root / "jetstream").is_dir():
        return f"{root} has data of worker {found[0]}, and none of worker 0, which holds what the cluster has agreed on"
    return None


def encode_place(place: WorkerOptions) -> str:
    return json.dumps(asdict(replace(place, ports=dict(place.ports))))


def decode_place(text: str) -> WorkerOptions:
    """Undoes `encode_place`. Raises ValueError, KeyError or TypeError for any other input."""
    found = json.loads(text)
    return WorkerOptions(**{**found, "cluster_ports": tuple(found["cluster_ports"])})


def place_of(environment: Mapping[str, str], index: int) -> WorkerOptions:
    """Returns the place that the supervisor gave to worker `index`. Raises ValueError."""
    try:
        place = decode_place(environment[ENVIRONMENT])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("--worker is the supervisor's flag: start the server with --workers") from error
    return replace(place, index=index)


def name_of(machine: str, index: int) -> str:
    """Returns a worker's server name."""
    return f"{machine}-w{index}" if index else machine


def become(options: Options, place: WorkerOptions) -> None:
    """Turns the options of the whole machine into those of one of its workers."""
    index = place.index
    options.worker = place
    options.server_name = name_of(place.machine, index)
    options.server_tags = [*options.server_tags, *tags_of(place.machine, index)]
    options.pid_file = options.ports_file_dir = ""  # the supervisor's
    options.log_file = f"{options.log_file}.w{index}" if options.log_file else ""
    options.port = place.ports["client"]
    options.http_port = place.ports["http"] if options.http_port else 0
    options.https_port = place.ports["http"] if options.https_port else 0
    options.websocket.port = place.ports.get("websocket", 0)
    options.leafnodes.port = place.ports.get("leafnodes", 0)
    if index:
        options.leafnodes.remotes = []  # one link of the machine to each hub
        resolver = options.operator.resolver
        if resolver is not None and resolver.directory:
            resolver.directory = f"{resolver.directory}-w{index}"  # each server has its own
    jetstream = options.jetstream
    jetstream.store_dir = folder_of(jetstream.store_dir, index)
    for name in ("max_memory_store", "max_file_store"):
        if getattr(jetstream, name) > 0:
            setattr(jetstream, name, max(getattr(jetstream, name) // place.count, 1))
    _join_mesh(options, place)


def _join_mesh(options: Options, place: WorkerOptions) -> None:
    """Sets the cluster's address and routes."""
    cluster, index = options.cluster, place.index
    if place.alone:
        cluster.name = place.machine
        cluster.host = LOOPBACK
        cluster.authorization.user, cluster.authorization.password = USER, place.secret
        cluster.no_advertise = True  # it is the same port
    elif cluster.cluster_advertise and index:
        host, separator, port = cluster.cluster_advertise.rpartition(":")
        if separator and port.isdigit():
            cluster.cluster_advertise = f"{host}:{int(port) + index}"
    cluster.port = place.cluster_ports[index]
    if index:
        cluster.routes = [*cluster.routes, f"nats-route://{place.route}"]
