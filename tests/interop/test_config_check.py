"""`-t` and the command line against nats-server: recorded verdicts are still its own, and flags are read as by it.

`python -m tests.interop.test_config_check` records all of tests/unit/config/oracle_verdicts.json again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from jetcluster.cli.main import main
from tests.unit.config.oracle_cases import CASES, ENVIRONMENT, FILES

VERDICTS = Path(__file__).parents[1] / "unit" / "config" / "oracle_verdicts.json"
TOOLS = Path(__file__).parents[2] / ".tools" / "bin"
ORACLE = TOOLS / "nats-server"
EVERY = 9
TRIES = 60
"""A verdict of one start in eight, as there are some, is missed in one run of three thousand."""

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.interop,
    pytest.mark.skipif(not ORACLE.exists(), reason=f"no {ORACLE}: run `make tools`"),
]


def oracle(*argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a start that ends at once."""
    done = subprocess.run(
        [str(ORACLE), *argv], capture_output=True, text=True, timeout=20, env={**os.environ, **ENVIRONMENT}
    )
    return done.returncode, done.stdout, done.stderr


def verdict(case: str) -> tuple[int, str]:
    Path("c.conf").write_bytes(case.encode())
    code, _, text = oracle("-t", "-c", "c.conf")
    return code, text.rstrip("\n").removeprefix("nats-server: ")


def write_files() -> None:
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()


def test_the_recorded_verdicts_are_the_real_server_s() -> None:
    """Some of them, others from time to time: each start takes 10 ms.

    nats-server goes over the options of a file as a Go map, whose order is another one at each start. A case with two
    faults of which it tells the first, as `store_dir` given at two places, so has more than one verdict of its own: the
    recorded one must come within some starts. One that it never gives fails after all of them.
    """
    recorded = json.loads(VERDICTS.read_text())
    for case in CASES[len(CASES) % EVERY :: EVERY]:
        wanted = in_any_order(*recorded[case])
        given = set()
        for _ in range(TRIES):
            given.add(in_any_order(*verdict(case)))
            if wanted in given:
                break
        assert wanted in given, case


def in_any_order(code: int, text: str) -> tuple[int, tuple[str, ...]]:
    """The lines, which come in the order of the same maps."""
    return code, tuple(sorted(text.split("\n")))


# What ends at once, and is the same to the letter apart from the usage text and the version.
FLAGS = [
    "-v",
    "--version",
    "version",
    "-h",
    "--help",
    "help",
    "--bogus",
    "-bogus=1",
    "---x",
    "-=1",
    "-p",
    "-p abc",
    "-p=abc",
    "--port=1.5",
    "-p 99999999999999999999",
    "-D=maybe",
    "-js=false -t",
    "-t",
    "-t -c ok.conf",
    "-t -c bad.conf",
    "-t -c warn.conf",
    "-t -c empty.conf",
    "-t -c nope.conf",
    "-c nope.conf",
    "-c bad.conf",
    "-c",
    "-c /",
    "-t -c /",
    "foo",
    "-p 1 foo",
    "version x",
    "help x",
    "-sl quit=4194305",
    "-sl quit=pid",
    "-sl quit=badpid",
    "-sl quit=nofile",
    "-sl bogus=4194305",
    "-sl ldm=abc*",
    "-sl quit=4194305=5",
    "--signal reload=4194305",
    "--signal=stop=4194305",
    "-routes nats://x:1",
    "-cluster abc",
    "-cluster nats://h",
    "-n=a\tb",
    "-tls",
    "-tls -tlscert x",
    "-tlskey x",
    "-tlsverify",
    "-tls -tlscert x -tlskey y",
    "-js -cluster nats://127.0.0.1:-1",
    "-js -n a -cluster nats://127.0.0.1:-1",
    "-v -bogus",
    "-bogus -v",
    "-h -v",
    "-v -h",
    "-t -v",
    "-t -c ok.conf -p abc",
    "-t -c ok.conf foo",
    "-ms abc",
    "--profile x",
    "--logtime_utc=x",
    "-T=false -v",
    "--no_advertise=x",
    "--connect_retries x",
    "--log_size_limit x",
    "--max_traced_msg_len x",
]


def shown(code: int, out: str, err: str) -> tuple[int, str, str]:
    if "Usage: nats-server" in out:
        out = "USAGE"
    return code, re.sub(r"v\d+\.\d+\.\d+", "vX", out), err


@pytest.mark.parametrize("line", FLAGS)
def test_flags_are_read_as_by_the_real_server(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("ok.conf").write_text("port: 4222\n")
    Path("bad.conf").write_text("foo: 1\n")
    Path("warn.conf").write_text("ping_interval: 20\n")
    Path("pid").write_text("4194305")
    Path("badpid").write_text("abc")
    argv = [word.replace("\t", " ") for word in line.split(" ")]
    theirs = oracle(*argv)
    code = main(argv, "nats-server")
    assert shown(code, *capfd.readouterr()) == shown(*theirs)


def test_every_flag_of_the_real_server_is_known_and_explained() -> None:
    from jetcluster.cli import flags

    _, usage, _ = oracle("-h")
    theirs = {flag.lstrip("-") for flag in re.findall(r"(?<![\w-])--?[A-Za-z_]+", usage)}
    assert len(theirs) > 60
    assert theirs - flags.NAMES.keys() == set()
    told = {flag.lstrip("-") for flag in re.findall(r"(?<![\w-])--?[A-Za-z_]+", flags.USAGE)}
    assert theirs - told == set()


def record() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_files()
        VERDICTS.write_text(json.dumps({case: verdict(case) for case in CASES}, indent=0) + "\n")


if __name__ == "__main__":
    record()
