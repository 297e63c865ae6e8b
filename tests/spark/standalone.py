"""A standalone master with workers, whose Python has pyspark and what pyspark needs, but no jetcluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jetcluster.pipeline import package
from testkit.harness import TOP
from tests.spark.session import JVM_FLAGS
from tests.spark.streams import until

PACKAGES = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "numpy.libs", "dateutil", "six.py", "tzdata", "pytz")
OURS = re.compile(r"jetcluster|_?_editable|pyspark_jetstream|.*\.pth$", re.IGNORECASE)
"""The files that an installation of jetcluster has in a folder of packages."""
SMALL = [
    "spark.executor.memory=512m", f"spark.executor.extraJavaOptions={JVM_FLAGS}", "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
]  # fmt: skip
START_SECONDS = 240.0
JOB_SECONDS = 400.0


class Standalone:
    """Processes of the master and its workers, and what submits to them. Each has a group of its own processes, so that
    a worker dies with its executors, as a machine does."""

    def __init__(self, folder: Path, *, apart: bool = False, env: Mapping[str, str] | None = None) -> None:
        """`apart`: workers and executors see an empty folder in place of `driver`, as on machines of their own, and
        their Python has all packages that we have, but for jetcluster. `env`: more environment for all of them."""
        self.folder = folder
        self.driver = folder / "driver"
        self.driver.mkdir()
        self._apart = apart
        self.env = self._environment() | dict(env or {})
        self.home = Path(self.env["SPARK_HOME"])
        with socket.socket() as probe:  # a port that it gets again when it is started again
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.master = f"spark://127.0.0.1:{self.port}"
        self.submit = str(self.home / "bin/spark-submit")
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def _environment(self) -> dict[str, str]:
        import pyspark

        venv.create(self.folder / "venv", with_pip=False)
        python = self.folder / "venv" / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        found = Path(pyspark.__file__).parent.parent
        names = [one.name for one in found.iterdir() if not OURS.match(one.name)] if self._apart else PACKAGES
        for name in names:
            if (found / name).exists():
                (self.folder / "venv/lib" / version / "site-packages" / name).symlink_to(found / name)
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and not key.startswith("SPARK")}
        env |= {"SPARK_HOME": str(found / "pyspark"), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}
        words = [python, "-c", "import pyspark, jetcluster"]
        done = subprocess.run(words, env=env, cwd=self.folder, capture_output=True, text=True, check=False)
        assert "No module named 'jetcluster'" in done.stderr
        return env

    def start_master(self) -> None:
        """It knows its workers and applications again when it is started again."""
        kept = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self.folder}/recovery"
        (self.folder / "recovery").mkdir(exist_ok=True)
        self._start(
            "Master", "Master", "New state: ALIVE|I have been elected leader", "--port", str(self.port), java=kept
        )

    def start_worker(self, name: str, cores: int) -> None:
        work = str(self.folder / "work" / name)
        words = ["--cores", str(cores), "--memory", "1g", "--work-dir", work, self.master]
        self._start(name, "Worker", "Successfully registered with master", *words)

    def _start(self, name: str, kind: str, ready: str, *words: str, java: str = "") -> None:
        log = self.folder / f"{name}.log"
        command = [str(self.home / "bin/spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *words]
        if self._apart and kind == "Worker":
            command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(self.driver), *command]
        env = self.env | {"SPARK_DAEMON_JAVA_OPTS": f"{JVM_FLAGS} {java}", "SPARK_DAEMON_MEMORY": "256m"}
        with log.open("wb") as out:
            self._running[name] = subprocess.Popen(
                command, env=env, stdout=out, stderr=out, cwd=self.folder, start_new_session=True
            )
        until(lambda: re.search(ready, log.read_text(errors="replace")), START_SECONDS, f"the start of {name}")

    def kill(self, name: str) -> None:
        """As a machine that loses power, with all that runs on it."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def worker_of(self, log: str, executor: str) -> str:
        """The worker that has an executor, by the log of its application."""
        found = re.search(r"app ID (app-\S+)", log)
        assert found is not None, log[-3000:]
        launched = f"launch executor {found[1]}/{executor} "
        workers = [name for name in self._running if name != "Master"]
        return next(name for name in workers if launched in (self.folder / f"{name}.log").read_text(errors="replace"))

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)
        shutil.rmtree(self.folder / "work", ignore_errors=True)

    def job(self, *words: str, conf: Any = ()) -> SubmittedJob:
        """Begins `jetcluster pipeline ...` by the line that `--print-submit` prints, in the folder `driver`."""
        words = (*words, "--master", self.master, "--print-submit")
        words += tuple(word for setting in (*SMALL, *conf) for word in ("--conf", setting))
        env = os.environ | {"PYSPARK_PYTHON": self.env["PYSPARK_PYTHON"], "PYTHONPATH": str(TOP)}
        line = subprocess.run(
            [sys.executable, "-m", "jetcluster.pipeline", *words],
            env=env, cwd=self.driver, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        env = self.env | {"PATH": f"{self.home / 'bin'}:{self.env['PATH']}"}
        return SubmittedJob(line, env, self.driver)

    def start(self, program: str, *words: str, conf: Any = ()) -> subprocess.Popen[str]:
        """Submits a program with the package's files; what it prints is piped."""
        package.write(self.folder)
        name, _, value = package.environment().partition("=")
        file = self.folder / f"program{abs(hash(program))}.py"
        file.write_text(program)
        command = [self.submit, "--master", self.master, *package.options()]
        command += [word for setting in (*SMALL, *conf) for word in ("--conf", setting)]
        with (self.folder / "submit.log").open("w") as log:
            return subprocess.Popen(
                [*command, str(file), *words],
                env=self.env | {name: value}, cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def run(self, program: str, *words: str, conf: Any = ()) -> str:
        """Returns what a submitted program prints. Fails with its log."""
        with self.start(program, *words, conf=conf) as process:
            printed = process.communicate()[0]
        assert process.returncode == 0, printed[-2000:] + self.submitted_log()[-4000:]
        return printed

    def submitted_log(self) -> str:
        return (self.folder / "submit.log").read_text(errors="replace")


class SubmittedJob:
    """A job under spark-submit, with all its processes in a group of their own."""

    def __init__(self, line: str, env: dict[str, str], folder: Path) -> None:
        self._log = folder / "job.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", line], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True,
            )  # fmt: skip

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, pattern: str) -> re.Match[str]:
        """Waits until its log has the pattern."""

        def said() -> bool:
            found = re.search(pattern, self.log())
            assert found or self._process.poll() is None, f"it ended without {pattern}: {self.log()[-3000:]}"
            return found is not None

        until(said, JOB_SECONDS, pattern)
        match = re.search(pattern, self.log())
        assert match is not None
        return match

    def ends(self) -> tuple[int, dict[str, Any]]:
        """(exit code, result) of the job; {} for a job that gives none."""
        try:
            printed = self._process.communicate(timeout=JOB_SECONDS)[0]
        finally:
            self.kill()
        at = printed.find("{\n")
        return self._process.returncode, json.loads(printed[at:]) if at >= 0 else {}

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Events:
    """An application's event log, from which Spark's UI is drawn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.conf = (
            "spark.eventLog.enabled=true", f"spark.eventLog.dir={folder.as_uri()}", "spark.eventLog.compress=false",
        )  # fmt: skip

    def _of(self, kind: str) -> list[Any]:
        files = [file for file in self.folder.rglob("*") if file.is_file() and not file.name.endswith(".crc")]
        events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [one for one in events if one["Event"].endswith(kind)]

    def job_names(self) -> list[str]:
        return [one["Properties"].get("spark.job.description", "") for one in self._of("SparkListenerJobStart")]

    def plan_nodes(self) -> set[str]:
        """The names of all nodes in plans."""
        waiting = [one["sparkPlanInfo"] for one in self._of("SparkListenerSQLExecutionStart")]
        found = set()
        while waiting:
            node = waiting.pop()
            found.add(node["nodeName"])
            waiting += node["children"]
        return found
