"""An operator's day with the stock `nats` tool: commands that no other test runs, on one cluster of three.

`pytest --server nats-server` runs the same script against nats-server: what a step wants is what that one prints, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import termios
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from testkit.harness import ProcessCluster, eventually, find_nats_cli
from tests.interop.test_nats_cli import Cli

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.thorough]

CONFIG = """
accounts {
  SYS: { users: [ { user: sys, password: pwd } ] }
  APP: { jetstream: enabled, users: [ { user: app, password: pwd } ] }
  OLD: { jetstream: enabled, users: [ { user: old, password: pwd } ] }
}
system_account: SYS
no_auth_user: app
"""
AT_ONCE = 5


class Step(NamedTuple):
    user: str
    command: str
    """`@/`: a folder of the test's own; `@URL`, `@ID`: of the first server; `@URL2`: of the second, with a user."""
    wants: tuple[str, ...] = ()
    """All of these are in the output."""
    rc: int = 0


def app(command: str, *wants: str, rc: int = 0) -> Step:
    return Step("app", command, wants, rc)


def system(command: str, *wants: str, rc: int = 0) -> Step:
    return Step("sys", command, wants, rc)


SCRIPT: dict[str, tuple[tuple[Step, ...], ...]] = {
    "streams": (
        (
            app("stream add ORDERS --subjects orders.> --replicas 3 --defaults", "Leader: "),
            app("stream add SMALL --subjects small --max-msgs 5 --max-msg-size 10 --discard new --defaults"),
            app("stream add QUEUE --subjects queue.> --retention work --defaults", "WorkQueue"),
            Step("old", "stream add GONE --subjects gone --replicas 3 --defaults"),
            Step("old", "stream add GONE2 --subjects gone2 --defaults"),
        ),
        (
            app("pub orders.{{Count}} 'body {{Count}}' --count 12 --jetstream"),
            app("pub small x --count 5 --jetstream"),
            app("pub small 'far too long for it' --jetstream", "10054", rc=1),
            app("stream copy SMALL COPY --subjects copy.>", "Subjects: copy.>"),
        ),
        (
            app("pub small x --jetstream", "10077", rc=1),
            app("stream state ORDERS", "Messages: 12"),
            app("stream info ORDERS --state", "Messages: 12"),
            app("stream state NOPE", "could not pick a Stream", rc=1),
            app("stream ls --subject orders.x", "ORDERS"),
            app("stream ls --names", "COPY\nORDERS\nQUEUE\nSMALL"),
            app("stream subjects ORDERS orders.7 --names", "orders.7"),
            app("stream find --empty --names", "COPY\nQUEUE"),
            app("stream find --replicas 3 --names", "ORDERS"),
            app("stream report --raw", "ORDERS", "n1", "n2", "n3"),
            app("stream get ORDERS 99", "no message found (10037)", rc=1),
            app("sub --stream ORDERS --all --count 2 --raw", "body 1\nbody 2"),
            app("sub orders.5 --stream ORDERS --last-per-subject --count 1 --raw", "body 5"),
            app("stream edit ORDERS --retention work -f", "10052", rc=1),
            app("server check stream --stream ORDERS --peer-expect 3 --msgs-critical 1 --msgs-warn 2", "OK ORDERS"),
            app("server check stream --stream ORDERS --msgs-critical 100 --msgs-warn 200", "CRITICAL ORDERS", rc=2),
            app("server check stream --stream NOPE", "CRITICAL NOPE", rc=2),
            app("server check message --stream ORDERS --subject orders.5 --age-critical 10m", "OK Stream Message"),
            app("server check request --subject $JS.API.INFO", "OK"),
            app("server check request --subject nope", "CRITICAL", rc=2),
            app("schema request $JS.API.STREAM.INFO.ORDERS"),
            app("trace orders.1", "Client"),  # and stores nothing: see the number of messages below
            app("trace nobody", "Client"),
        ),
        (
            app("stream rmm ORDERS 3 -f"),
            app("stream seal SMALL -f", "Sealed: true"),
            app("stream rm COPY -f"),
        ),
        (
            app("stream gaps ORDERS -f", "1 gap found in Stream ORDERS"),
            app("stream purge SMALL -f", "10109", rc=1),
            app("pub small x --jetstream", "10109", rc=1),
            app("stream rm COPY -f", "10059", rc=1),
        ),
    ),
    "consumers": (
        (
            app("consumer add ORDERS C --pull --defaults", "Leader: "),
            app("consumer add ORDERS D --pull --filter orders.1 --max-deliver 3 --defaults"),
            app("consumer add QUEUE A --pull --defaults"),
        ),
        (
            app("consumer add QUEUE B --pull --defaults", "10099", rc=1),
            app("consumer add ORDERS C --pull --ack none --defaults", "10012", rc=1),
            app("consumer state ORDERS C", "Unprocessed Messages: 11"),
            app("consumer info ORDERS NOPE", "could not select Consumer", rc=1),
            app("consumer ls ORDERS --names", "C\nD"),
            app("consumer find ORDERS --pull", "C", "D"),
            app("consumer find ORDERS --pending 5"),
            app("consumer copy ORDERS C E --max-deliver 7", "Maximum Deliveries: 7"),
            app("consumer next ORDERS D --count 1 --raw --ack", "body 1"),
            app("server check consumer --stream ORDERS --consumer C --outstanding-ack-critical 100", "OK ORDERS_C"),
            app("server check consumer --stream ORDERS --consumer NOPE", "CRITICAL ORDERS_NOPE", rc=2),
        ),
        (
            app("consumer report ORDERS --raw", "C", "D", "E"),
            app("consumer cluster balance ORDERS"),
            app("consumer rm ORDERS NOPE -f", "10014", rc=1),
        ),
        (app("consumer rm ORDERS E -f"),),
    ),
    "buckets": (
        (
            app("kv add KB --history 5 --replicas 3"),
            app("kv add KB2 --ttl 1h --marker-ttl 1m --max-value-size 10 --max-bucket-size 10000 --compress"),
            app("object add OB --replicas 3 --description things --metadata a:b", "things"),
        ),
        (
            app("kv put KB a 1"),
            app("kv put KB2 k 'far too long for it'", "10054", rc=1),
            app("kv add KB --history 6", rc=1),
            app("object put OB @/thing --name thing -f --no-progress", "thing"),
        ),
        (
            app("server check kv --bucket KB --key a", "OK KB"),
            app("server check kv --bucket KB --key nope", "CRITICAL KB", rc=2),
            app("kv get KB a --revision 1 --raw", "1"),
            app("object seal OB -f"),
        ),
        (
            app("object put OB @/thing --name other -f --no-progress", rc=1),
            app("object get OB nope --output @/nope -f --no-progress", "object not found", rc=1),
            app("kv del KB2 -f"),
        ),
    ),
    "load": (
        (app("stream add BENCH --subjects bench --replicas 3 --allow-batch --allow-fast --defaults"),),
        (
            app("bench pub core --msgs 300 --clients 2 --size 64 --no-progress", "publisher aggregated stats"),
            app("bench js pub async bench --stream BENCH --msgs 200 --no-progress", "asynchronous publisher stats"),
            app("bench js pub sync bench --stream BENCH --msgs 20 --no-progress", "synchronous publisher stats"),
            app("bench js pub atomic bench --stream BENCH --msgs 100 --no-progress", "atomic batch publisher stats"),
            app("bench js pub fast bench --stream BENCH --msgs 300 --no-progress", "fast batch publisher stats"),
            app("bench kv put --msgs 30 --no-progress", "KV putter stats"),
        ),
        (
            app("bench js ordered --stream BENCH --msgs 100 --no-progress", "ordered ephemeral consumer stats"),
            app("bench js consume --stream BENCH --msgs 100 --no-progress", "durable consumer (callback) stats"),
            app("bench js get sync --stream BENCH --msgs 20 --no-progress", "synchronous getter stats"),
            app("bench js get batch --stream BENCH --msgs 100 --no-progress", "batched direct getter stats"),
            app("bench kv get --msgs 30 --no-progress", "KV getter stats"),
            app("latency --server-b @URL2 --duration 1s --rate 50 --size 32", "Median Latency"),
        ),
        (
            app("bench js fetch --stream BENCH --msgs 100 --no-progress", "(fetch) stats"),
            app("bench js pub fast made --create --msgs 300 --clients 3 --no-progress", "aggregated stats"),
        ),
        (app("stream rm benchstream -f"),),
    ),
    "servers": (
        (
            system("server list --json 3", '"ver"', '"active_servers": 3'),
            system("server ping --graph 3", "n1", "n2", "n3"),
            system("server report jetstream --account APP", "JetStream Summary for Account APP"),
            system("server report jetstream --compact 3", "RAFT Meta Group Information"),
            system("server report gateways", "Super Cluster Report"),
            system("server report connections --json", '"cid"'),
            system("server report accounts --json", '"account"'),
            system("server request routes", '"routes"'),
            system("server request gateways", '"outbound_gateways"'),
            system("server request leafnodes", '"leafs"'),
            system("server request ipqueue", '"data"'),
            system("server request accounts", '"accounts"'),
            system("server request raft --account APP", '"APP"'),
            system("server request connections --filter-state closed", '"reason":"Client Closed"'),
            system("server request connections --filter-account APP --filter-subject x", '"connections":[]'),
            system("server request connections --filter-user sys", '"connections"'),
            system("server request subscriptions --filter-account APP", '"num_subscriptions"'),
            system("server request jetstream-health --account APP --stream ORDERS", '"status":"ok"'),
            system("server request jetstream-health --account APP --stream NOPE", '"status_code":404'),
            system("server request kick 999999 @ID", "no such client"),
            system("server account info NOPE", rc=1),
            system("server check meta --expect 5 --lag-critical 100 --seen-critical 10s", "CRITICAL", rc=2),
            system("server check server --name n1 --conn-critical 1000 --conn-warn 900 --subs-critical 100000 "
                   "--subs-warn 90000 --js-required --auth-required", "OK n1 OK:JetStream enabled"),
            system("server check server --name n1 --tls-required", "CRITICAL n1 Crit:TLS not required", rc=2),
            system("server check server --name n1 --format prometheus", "nats_server_check_server_connections"),
            app("server check jetstream --replicas --replica-lag-critical 1000 --replica-seen-critical 20s", "OK JetS"),
            app("account report connections --sort subs", "by subs"),
            app("server list 3", "system privileges", rc=1),
            system("audit gather --output @/audit.zip --no-progress --no-server-profiles"),
            system("server account purge OLD -f", "Purge operation on account OLD initiated"),
            app("server account purge APP", rc=1),
        ),
        (
            Step("", "audit analyze @/audit.zip", ("Summary of Checks", "[PASS] [SERVER_007]")),
            Step("old", "stream ls", ("No Streams defined",)),
            system("server cluster step-down"),
        ),
        (system("server cluster peer-remove nope -f", rc=1),),
    ),
    "the tool itself": (
        (
            Step("", "errors lookup 10014", ("consumer not found",)),
            Step("", "context add day --server @URL --user app --password pwd --description d", ("day",)),
            app("service info nope", rc=1),
        ),
        (Step("", "context select day", ("day",)),),
        (
            Step("", "context validate", ("day",)),
            Step("", "rtt", ("127.0.0.1",)),
            Step("", "stream ls --names", ("ORDERS",)),
        ),
        (Step("", "context rm day -f"),),
    ),
    "account backup": (
        (app("account backup @/account -f", "Performing backup of all streams"),),
        (app("stream rm ORDERS -f"), app("stream rm BENCH -f"), app("stream rm QUEUE -f"), app("stream rm SMALL -f"),
         app("kv del KB -f"), app("object del OB -f"), app("kv del benchbucket -f")),
        (app("account restore @/account"),),
        (app("stream ls --names --all", "BENCH\nKV_KB\nKV_benchbucket\nOBJ_OB\nORDERS\nQUEUE\nSMALL"),
         app("stream state ORDERS", "Messages: 11")),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def nodes(server: str, tool: str, request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    cluster = ProcessCluster(3, server, config=CONFIG, monitor=True)
    failures = request.session.testsfailed
    asyncio.run(cluster.__aenter__())
    yield cluster
    cluster.failed = request.session.testsfailed > failures
    asyncio.run(cluster.__aexit__(None))


class Operator:
    """Runs steps, each as a process of the tool, with a home of its own."""

    def __init__(self, nodes: ProcessCluster, home: Path, server_id: str) -> None:
        self._nodes = nodes
        self._home = home
        self._names = {
            "URL": nodes.urls[0],
            "URL2": f"nats://app:pwd@127.0.0.1:{nodes[1].port}",
            "ID": server_id,
            "/": f"{home}/",
        }
        self._running = asyncio.Semaphore(AT_ONCE)

    def cli(self, user: str, timeout: str = "") -> Cli:
        """Requests to many servers wait `timeout` for one that may still answer; others need patience."""
        tool = find_nats_cli()
        assert tool is not None
        found = Cli(tool, self._nodes.urls[0])
        found.base = [tool]
        if user:
            timeout = timeout or ("2s" if user == "sys" else "8s")
            found.base += ["--server", self._nodes.urls[0], "--user", user, "--password", "pwd", "--timeout", timeout]
        return found

    async def run(self, step: Step) -> None:
        command = re.sub(r"@(URL2|URL|ID|/)", lambda found: self._names[found[1]], step.command)
        async with self._running:
            output = await self.cli(step.user)(*shlex.split(command), rc=step.rc)
        plain = "\n".join(" ".join(line.split()) for line in output.splitlines())
        assert all(text in plain for text in step.wants), f"{step}\n{output}"


@contextlib.asynccontextmanager
async def background(cli: Cli, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command that runs until it is stopped."""
    process = await asyncio.create_subprocess_exec(
        *cli.base, *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        await process.communicate()  # `wait` alone waits for ever where a lot was not read


async def test_a_day(nodes: ProcessCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "thing").write_bytes(b"thing" * 1000)
    await asyncio.sleep(
        1.0 if nodes.server == "nats-server" else 0
    )  # it is ready before it knows the others' resources
    operator = Operator(nodes, tmp_path, (await nodes[0].monitor("varz"))["server_id"])
    async with background(operator.cli("sys"), "events", "--all") as events:
        for name, phases in SCRIPT.items():
            for steps in phases:
                failed = await asyncio.gather(*(operator.run(step) for step in steps), return_exceptions=True)
                problems = [str(problem) for problem in failed if problem is not None]
                assert not problems, f"{name}:\n" + "\n".join(problems)
        assert events.stdout is not None
        heard = ""
        async with asyncio.timeout(10):
            while not all(kind in heard for kind in ("Client Connection", "Client Disconnection", "Stream Leader")):
                heard += (await events.stdout.read(65536)).decode(errors="replace")


async def test_services_answer_the_tool(nodes: ProcessCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    operator = Operator(nodes, tmp_path, "")
    app_cli = operator.cli("app", "1s")
    async with background(app_cli, "service", "serve", "day"):

        async def serves() -> bool:
            process = await asyncio.create_subprocess_exec(
                *app_cli.base, "service", "ls", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            return b"day" in (await process.communicate())[0]

        await eventually(serves, 20, "the service is not there")
        for command in ("info", "stats", "ping"):
            assert "day" in await app_cli("service", command, "day")


async def test_top_in_a_terminal(nodes: ProcessCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads /varz and /connz by system requests, and draws only where there is a terminal."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    base = Operator(nodes, tmp_path, "").cli("sys").base

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = await asyncio.create_subprocess_exec(
        *base, "top", "n1", stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take_terminal
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = ""
    try:
        async with asyncio.timeout(15):
            while not all(word in seen for word in ("PENDING", "127.0.0.1:")):
                await asyncio.sleep(0.05)
                with contextlib.suppress(BlockingIOError):
                    drawn = os.read(ours, 65536).decode(errors="replace")
                    seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn)
    finally:
        process.kill()
        await process.wait()
        os.close(ours)
