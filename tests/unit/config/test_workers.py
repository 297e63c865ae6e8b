"""A worker's options, made from those of its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.cli.merge import options_from
from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_text
from jetcluster.config.options import Options, WorkerOptions
from jetcluster.config.workers import (
    ENVIRONMENT,
    become,
    count_of,
    decode_place,
    encode_place,
    place_of,
    problem_of_store,
    workers_of,
)

PORTS = {"client": 4222, "http": 8222, "leafnodes": 7422}


def place(index: int, **changes: object) -> WorkerOptions:
    found: dict[str, object] = {
        "index": index, "count": 2, "machine": "M1", "cluster_ports": (7001, 7002), "route": "127.0.0.1:7001",
        "ports": PORTS, "secret": "hush",
    }  # fmt: skip
    return WorkerOptions(**{**found, **changes})  # type: ignore[arg-type]


def worker(text: str, index: int, **changes: object) -> Options:
    options, _ = load_text(text, "c.conf", {})
    become(options, place(index, **changes))
    return options


ALONE = """
server_name: M1, http: 8222, pid_file: p, ports_file_dir: d, log_file: l, server_tags: ["az:1"]
jetstream { store_dir: /data, max_file_store: 10GB }
leafnodes { port: -1, remotes: [ { url: "nats-leaf://hub:7422" } ] }
"""


def test_the_first_worker_is_the_server_that_one_process_would_be() -> None:
    options = worker(ALONE, 0)
    assert (options.server_name, options.jetstream.store_dir, options.port) == ("M1", "/data", 4222)
    assert options.server_tags == ["az:1", "machine:m1", "worker:0"]
    assert len(options.leafnodes.remotes) == 1
    assert options.cluster.routes == []


def test_another_one_has_its_own_name_and_store_and_finds_the_first() -> None:
    options = worker(ALONE, 1)
    assert (options.server_name, options.jetstream.store_dir) == ("M1-w1", "/data/worker-1")
    assert options.cluster.routes == ["nats-route://127.0.0.1:7001"]
    assert (options.port, options.http_port, options.leafnodes.port) == (4222, 8222, 7422)
    assert options.leafnodes.remotes == []


def test_the_workers_of_a_single_machine_are_a_cluster_that_nobody_else_can_join() -> None:
    cluster = worker(ALONE, 1).cluster
    assert (cluster.name, cluster.host, cluster.port) == ("M1", "127.0.0.1", 7002)
    assert cluster.authorization.password == "hush"


@pytest.mark.parametrize("tag", ["machine:big", "Worker:1", " machine:"])
def test_no_server_is_made_a_worker_by_its_tags(tag: str) -> None:
    with pytest.raises(ConfigError, match=r'server_tags must not begin with "(machine|worker):", which workers have'):
        load_text(f'server_tags: ["az:1", "x,{tag}"]', "c.conf", {})
    assert load_text("server_tags: [machine, workers]", "c.conf", {})[0].server_tags == ["machine", "workers"]


def test_files_are_the_supervisors_and_the_store_is_shared_out() -> None:
    options = worker(ALONE, 1)
    assert (options.pid_file, options.ports_file_dir, options.log_file) == ("", "", "l.w1")
    assert options.jetstream.max_file_store == 5 * 1024**3


CLUSTER = """
server_name: n1
cluster { name: c, listen: "0.0.0.0:6222", cluster_advertise: "n1.example:6222", routes: ["nats-route://n2:6222"] }
"""


def test_in_a_cluster_each_worker_has_a_port_of_its_own() -> None:
    options = worker(CLUSTER, 1, secret="", cluster_ports=(6222, 6223), route="n1.example:6222")
    assert (options.cluster.name, options.cluster.host, options.cluster.port) == ("c", "0.0.0.0", 6223)
    assert options.cluster.cluster_advertise == "n1.example:6223"
    assert options.cluster.routes == ["nats-route://n2:6222", "nats-route://n1.example:6222"]
    first = worker(CLUSTER, 0, secret="", cluster_ports=(6222, 6223), route="n1.example:6222")
    assert (first.cluster.cluster_advertise, first.cluster.routes) == ("n1.example:6222", ["nats-route://n2:6222"])


def test_a_place_goes_through_the_environment() -> None:
    sent = place(0, link=9)
    assert decode_place(encode_place(sent)) == sent
    assert place_of({ENVIRONMENT: encode_place(sent)}, 1) == place(1, link=9)
    for text in ("", "{}", "[]", '{"index": 1}'):
        with pytest.raises(ValueError, match=r"^--worker is the supervisor's flag"):
            place_of({ENVIRONMENT: text}, 1)


def test_the_password_is_in_no_representation() -> None:
    assert "hush" not in repr(place(0))


@pytest.mark.parametrize("text", ["0", "65", "-1", "two", "", "1.5", "²"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match='must be "auto" or a number from 1 to 64'):
        workers_of(text)
    with pytest.raises(ConfigError, match=r"^workers must be"):
        options_from({"workers": text})


def test_numbers() -> None:
    assert (workers_of("auto"), workers_of("8")) == (0, 8)
    assert (count_of(3), count_of(0) >= 1) == (3, True)
    assert options_from({"workers": "auto"}).workers == 0
    assert load_text("workers: auto", "c", {})[0].workers == 0
    with pytest.raises(ConfigError, match=r'workers must be "auto" or a number from 1 to 64, got '):
        load_text("workers: 100", "c", {})


def test_data_of_workers_that_are_not_started_is_not_passed_over(tmp_path: Path) -> None:
    options = Options()
    options.jetstream.enabled, options.jetstream.store_dir = True, str(tmp_path)
    assert problem_of_store(options, 1) is None
    for folder in ("jetstream", "worker-1/jetstream", "worker-2/jetstream", "worker-x/jetstream", "worker-3"):
        (tmp_path / folder).mkdir(parents=True)
    assert problem_of_store(options, 3) is None
    assert "has data of worker 2, and workers is 2: set workers to 3, or" in str(problem_of_store(options, 2))
    (tmp_path / "jetstream").rmdir()
    assert "none of worker 0" in str(problem_of_store(options, 3))


def test_in_a_cluster_worker_0_may_begin_anew(tmp_path: Path) -> None:
    options, _ = load_text(f'{CLUSTER} jetstream {{ store_dir: "{tmp_path}" }}', "c.conf", {})
    (tmp_path / "worker-1" / "jetstream").mkdir(parents=True)
    assert problem_of_store(options, 2) is None
    assert "has data of worker 1" in str(problem_of_store(options, 1))


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1), ("", 8)]
)
def test_automatic_is_one_per_core_that_the_container_may_use(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu.max").write_text(quota)
    assert count_of(0, tmp_path / "cpu.max") == cores
    assert count_of(0, tmp_path / "nowhere") == 8
