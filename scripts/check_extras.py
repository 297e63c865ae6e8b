"""Each extra alone: `python -m scripts.check_extras [EXTRA ...]` (`make extras`: all of them, and none).

The development environment has everything, so it cannot show that an extra forgets a package. This builds the wheel,
makes an environment of the wheel and what it requires with one extra, down to the last requirement and nothing else,
and does there what the extra is for. The packages are linked from the environment that this runs in, whose versions
pip has resolved for all extras together: pyspark alone is 450 MB, and an index takes half a minute for each extra. The
wheel is built as pip builds it; where no package index answers for that, all of it is skipped, with the reason.
"""

from __future__ import annotations

import email
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP = Path(__file__).resolve().parents[1]
ALONE = ""
"""No extra."""
LAKE_FORMS = {"lakehouse": "json", "avro": "avro", "protobuf": "protobuf"}
"""The form of payloads that an extra is for, of those that land in tables."""
READY_SECONDS = 30.0
TOOLS = "ruff, mypy, pytest, xdist, hypothesis, docker, toxiproxy, yaml, prometheus_client"
"""The packages of `dev`, by the names that are imported."""

PUBLISH = """
import sys
from jetcluster.client.connection import Connection

with Connection(sys.argv[1:]) as connection:
    connection.api("STREAM.CREATE.BASE", {"name": "BASE", "subjects": ["base"], "allow_direct": True})
    assert connection.request("base", b"hello").json()["seq"] == 1
    assert connection.request("$JS.API.DIRECT.GET.BASE", b'{"seq":1}').data == b"hello"
"""
DEMO = """
import asyncio, sys, nats
from scripts import flights

async def main(url):
    subjects, payloads = flights.load()
    nc = await nats.connect(url)
    js = nc.jetstream()
    await js.add_stream(name="DEMO", subjects=["flights.>"])
    assert (await js.publish(subjects[0], payloads[0])).seq == 1
    await nc.close()

asyncio.run(main(sys.argv[1]))
"""
PLOT = """
from bench.plot import plots

assert "<svg" in plots("messages", {"restart": ("s", {"jetcluster": [(1, 2), (10, 3)]})})
"""
SPARK = """
import sys
from jetcluster.pipeline import environment, main, session

url, folder = sys.argv[1:]
environment.check()
spark = session.open_session("local[2]", name="extras", quick=True)

def rows(stream):
    return spark.read.format("jetstream").options(servers=url, stream=stream).load().count()

text = "encode(cast(id AS string), 'utf-8') AS data"
table = spark.range(200).selectExpr("concat('spark.', id % 5) AS subject", text)
table.write.format("jetstream").options(servers=url, stream="SPARK").mode("append").save()
assert rows("SPARK") == 200
main.run_in(spark, "archive", "--server", url, "--stream", "SPARK", "--out", folder)
main.run_in(spark, "restore", "--server", url, "--from", folder, "--stream", "AGAIN", "--subjects", "again.>")
assert rows("AGAIN") == 200
spark.stop()
"""
ARROW = """
import sys
from jetcluster.arrow import read_bucket, read_stream
from jetcluster.client.connection import Connection

with Connection(sys.argv[1:]) as connection:
    connection.api("STREAM.CREATE.ARROW", {"name": "ARROW", "subjects": ["arrow.*"], "allow_direct": True})
    bucket = {"name": "KV_ARROW", "subjects": ["$KV.ARROW.>"], "allow_direct": True, "max_msgs_per_subject": 1}
    connection.api("STREAM.CREATE.KV_ARROW", bucket)
    for number in range(200):
        connection.publish_acked(f"arrow.{number % 5}", b"%d" % number)
        connection.publish_acked(f"$KV.ARROW.{number % 5}", b"%d" % number)
    connection.acks()

table = read_stream(sys.argv[1], "ARROW").read_all()
assert table.column("data").to_pylist() == [b"%d" % number for number in range(200)]
assert sorted(read_bucket(sys.argv[1], "ARROW").read_all().column("key").to_pylist()) == ["0", "1", "2", "3", "4"]
"""
LAKEHOUSE = """
import sys
from pathlib import Path
from deltalake import DeltaTable
from jetcluster.client.connection import Connection
from jetcluster.pipeline import environment, main, session

url, folder, form = sys.argv[1:]
Path(folder).mkdir()
stream, payload, schema, more = "LAKE" + form.upper(), b'{"a": 1}', "", []
if form == "avro":
    payload, schema = b"\\x02", b'{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}'
elif form == "protobuf":
    from google.protobuf import descriptor_pb2
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    file.message_type.add(name="R").field.add(name="a", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    payload, schema = b"\\x08\\x01", descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    more = ["--message", "R"]
if schema:
    Path(folder, "schema").write_bytes(schema)
    more += ["--schema-file", f"{folder}/schema"]
with Connection([url]) as connection:
    connection.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [stream], "allow_direct": True})
    connection.request(stream, payload)
environment.check()
spark = session.open_session("local[2]", name="extras", quick=True)
words = ["--catalog", "type=sql", "--catalog", f"uri=sqlite:///{folder}/c.db", "--catalog", f"warehouse=file://{folder}/w"]
words += ["--delta", f"{folder}/lake", "--iceberg", "db.lake", "--format", form, *more]
main.run_in(spark, "lakehouse", "--server", url, "--stream", stream, *words)
assert DeltaTable(f"{folder}/lake").to_pyarrow_table().select(["_seq", "a"]).to_pylist() == [{"_seq": 1, "a": 1}]
spark.stop()
"""
S3 = """
import sys
import boto3
from jetcluster.backup.s3 import S3Storage

boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1").create_bucket(Bucket="backups")
storage = S3Storage.open("s3://backups/here", sys.argv[1], "us-east-1")
storage.create("a/b", b"stored")
assert storage.read("a/b") == b"stored" and [one.path for one in storage.list("a")] == ["a/b"]
"""
ARCHIVE = """
import os, sys, urllib.request
from jetcluster.archive.storage import open_archive

urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/backups", method="PUT")).close()
os.environ["AWS_ENDPOINT_URL"] = sys.argv[1]
storage = open_archive("s3://backups/archive")
storage.create("a/b", b"stored")
with storage.open("a/b") as file:
    assert file.read() == b"stored" and [one.path for one in storage.list("a")] == ["a/b"]
"""
S3_KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
CREATE_SPARK = """
import sys
from jetcluster.client.connection import Connection

with Connection(sys.argv[1:]) as connection:
    connection.api("STREAM.CREATE.SPARK", {"name": "SPARK", "subjects": ["spark.*"], "allow_direct": True})
"""


class Environment:
    """A virtual environment with the wheel, one extra, and nothing else; not even pip."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.python = folder / "bin" / "python"
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        words = ["install", "--quiet", "--no-index", "--no-deps", str(wheel)]
        run([sys.executable, "-m", "pip", "--python", str(self.python), *words])
        (site,) = folder.glob("lib/python*/site-packages")
        for package in sorted(required(requirements_of(wheel), extra)):
            link(package, site)

    def run(self, *words: str, **more: str) -> None:
        """`python <words>` in the environment."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        run([str(self.python), *words], env=env | more)


def requirements_of(wheel: Path) -> tuple[list[str], list[str]]:
    """Extras of the wheel and what it requires, as its METADATA says."""
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = email.message_from_bytes(archive.read(name))
    return text.get_all("Provides-Extra", []), text.get_all("Requires-Dist", [])


def required(wheel: tuple[list[str], list[str]], extra: str) -> set[str]:
    """Names of the packages that pip installs for the wheel with `extra`, those that they require included."""
    found: set[tuple[str, str]] = set()
    wanted = [("jetcluster", ALONE), ("jetcluster", extra)]
    while wanted:
        name, with_extra = wanted.pop()
        if (name, with_extra) in found:
            continue
        found.add((name, with_extra))
        for text in wheel[1] if name == "jetcluster" else installed(name).requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": with_extra}):
                wanted += [(canonicalize_name(requirement.name), more) for more in (ALONE, *requirement.extras)]
                check_version(requirement)
    return {name for name, _ in found} - {"jetcluster"}


def check_version(requirement: Requirement) -> None:
    version = installed(requirement.name).version
    if not requirement.specifier.contains(version, prereleases=True) and requirement.name != "jetcluster":
        fail(f"{requirement} is wanted and {version} is here: run `make install`")


def installed(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        fail(f"{name} is not installed here: run `make install`")


def link(package: str, site: Path) -> None:
    """Makes the package importable in the environment of `site`."""
    found = installed(package)
    for top in sorted({file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}):
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(found.locate_file(top))).resolve())


@contextmanager
def server(base: Environment, folder: Path) -> Iterator[str]:
    """The URL of a server that runs in the environment without an extra."""
    words = [
        str(base.python.with_name("jetcluster")),
        "serve",
        "-js",
        "-sd",
        str(folder),
        "-a",
        "127.0.0.1",
        "-p",
        "-1",
    ]
    with subprocess.Popen([*words, "--ports_file_dir", str(folder)], stderr=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            ports, give_up = folder / f"nats-server_{process.pid}.ports", time.monotonic() + READY_SECONDS
            while not ports.exists() or not ports.read_text():
                if process.poll() is not None or time.monotonic() > give_up:
                    fail(f"`{' '.join(words)}` does not get ready")
                time.sleep(0.05)
            yield json.loads(ports.read_text())["nats"][0]
        finally:
            process.terminate()


@contextmanager
def s3_server() -> Iterator[str]:
    """The URL of a storage in memory, of the environment that this runs in."""
    from moto.server import ThreadedMotoServer

    storage = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    storage.start()
    try:
        yield "http://{}:{}".format(*storage.get_host_and_port())
    finally:
        storage.stop()


def check(extra: str, here: Environment, url: str, folder: Path) -> None:
    """Does what the extra is for."""
    if extra == ALONE:
        check_loops(here)
        here.run("-c", PUBLISH, url)
        here.run("-m", "jetcluster", "--help")
        here.run("-m", "jetcluster", "demo")
    elif extra == "demo":
        here.run("-c", DEMO, url, PYTHONPATH=str(TOP))
    elif extra == "spark":
        here.run("-c", CREATE_SPARK, url)
        here.run("-c", SPARK, url, str(folder), PYSPARK_PYTHON=str(here.python), SPARK_LOCAL_IP="127.0.0.1")
    elif extra == "arrow":
        here.run("-c", ARROW, url)
    elif extra in LAKE_FORMS:
        here.run(
            "-c",
            LAKEHOUSE,
            url,
            str(folder),
            LAKE_FORMS[extra],
            PYSPARK_PYTHON=str(here.python),
            SPARK_LOCAL_IP="127.0.0.1",
        )
    elif extra == "s3":
        with s3_server() as endpoint:
            here.run("-c", S3, endpoint, **S3_KEYS)
    elif extra == "archive":
        with s3_server() as endpoint:
            here.run("-c", ARCHIVE, endpoint, **S3_KEYS)
    elif extra == "bench":
        here.run("-c", PLOT, PYTHONPATH=str(TOP))
    elif extra == "dev":
        here.run("-c", f"import {TOOLS}")
        here.run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(TOP / "tests/unit/protocol/test_headers.py"))
    elif extra == "docs":
        here.run("-m", "mkdocs", "build", "--quiet", "--strict", "-f", str(TOP / "mkdocs.yml"), "-d", str(folder))
    else:
        fail(f"the wheel has an extra {extra!r}: say here what it is for")


def check_loops(here: Environment) -> None:
    """The wheel has compiled loops, which load where PATH has no compiler."""
    words = [str(here.python.with_name("jetcluster")), "serve", "-v"]
    said = subprocess.run(words, env={"PATH": str(here.python.parent)}, capture_output=True, text=True, check=True)  # noqa: S603
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    compiled = shutil.which(compiler) is not None and not os.environ.get("JETCLUSTER_PURE")
    wanted = "compiled loops" if compiled else "Python alone"
    if wanted not in said.stdout + said.stderr:
        fail(f"the wheel ought to say {wanted!r} and says {said.stdout + said.stderr!r}")


def reason_to_skip(folder: Path) -> str:
    """Why no wheel can be built here, "" if one can."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1", "--timeout", "10"]
    words += ["--dest", str(folder), "hatchling", "cython>=3.1", "setuptools>=75"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    return "" if done.returncode == 0 else (done.stderr.strip() or "pip does not run").splitlines()[-1]


def run(words: Sequence[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        fail(f"{' '.join(words)[:200]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def output(words: Sequence[str]) -> str:
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()  # noqa: S603


def fail(text: str) -> NoReturn:
    print(f"extras: FAILED {text}", flush=True)
    raise SystemExit(1)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jetcluster-extras-") as name:
        folder = Path(name)
        if reason := reason_to_skip(folder):
            print(f"extras: not run here, no package index answers: {reason}")
            return
        output([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", name, str(TOP)])
        wheel = next(folder.glob("jetcluster-*.whl"))
        base = Environment(folder / "base", wheel, ALONE)
        with server(base, folder / "store") as url:
            for extra in sys.argv[1:] or (ALONE, *requirements_of(wheel)[0]):
                if extra in ("spark", *LAKE_FORMS) and shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
                    print(f"extras: [{extra}] not run here, there is no Java")
                    continue
                start = time.monotonic()
                here = base if extra == ALONE else Environment(folder / extra, wheel, extra)
                check(extra, here, url, folder / f"{extra}-files")
                print(f"extras: [{extra}] works alone ({time.monotonic() - start:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
