"""A release in dist/: `make release` (`python -m scripts.release [--dirty] [--no-image] [--out FOLDER]`).

A wheel with compiled loops, an sdist, the container image where docker runs, an SBOM, the release note and SHA256SUMS,
all of them of one commit. The packages are built from an export of the commit in a folder of its own, so nothing that
lies about here gets in, and twice: the same Python, C compiler and build tools make the same bytes wherever they run.
The wheel, and the sdist with and without a C compiler, are installed into empty environments, where `jetcluster demo`
has to succeed, before anything is written to dist/.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.release_trial import TrialError, environment_of, try_sdist, try_wheel
from scripts.sbom import SbomError, make_sbom

TOP = Path(__file__).resolve().parents[1]
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
APP_VERSION = re.compile(r'^appVersion: "([^"]+)"$', re.MULTILINE)


class ReleaseError(Exception):
    """Why nothing is released."""


@dataclass(frozen=True)
class Sources:
    """The export of a commit."""

    tree: Path
    commit: str
    epoch: int
    """Seconds since 1970 of the commit: the time of every file in the packages."""
    dirty: bool

    @property
    def version(self) -> str:
        found = VERSION.search((self.tree / "jetcluster" / "__init__.py").read_text())
        assert found is not None, "jetcluster/__init__.py says the version"
        return found[1]

    @property
    def env(self) -> dict[str, str]:
        """The environment of what builds."""
        here = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JETCLUSTER_"))}
        return here | {"SOURCE_DATE_EPOCH": str(self.epoch), "PYTHONHASHSEED": "0"}


def export(top: Path, folder: Path, *, dirty: bool) -> Sources:
    """The sources of HEAD in `folder`; with `dirty` the tracked files as they are now. Raises ReleaseError."""
    if git(top, "rev-parse", "--show-prefix", check=False) or not git(top, "rev-parse", "--git-dir", check=False):
        raise ReleaseError("there is no git repository: a release is of a commit")
    changed = git(top, "status", "--porcelain")
    if changed and not dirty:
        raise ReleaseError(f"the tree has changes that are not committed (--dirty releases them):\n{changed}")
    if changed:
        for name in git(top, "ls-files", "-z").rstrip("\0").split("\0"):
            if (top / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(top / name, folder / name, follow_symlinks=False)
    else:
        archive = folder.with_suffix(".tar")
        git(top, "archive", f"--output={archive}", "HEAD")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    epoch = int(git(top, "log", "-1", "--format=%ct"))
    return Sources(folder, git(top, "rev-parse", "HEAD"), epoch, bool(changed))


def git(top: Path, *words: str, check: bool = True) -> str:
    done = subprocess.run(["git", *words], cwd=top, capture_output=True, text=True, check=False)  # noqa: S603, S607
    if done.returncode and check:
        raise ReleaseError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return "" if done.returncode else done.stdout.strip()


def packages(sources: Sources, out: Path) -> tuple[Path, Path]:
    """Builds the sdist, and the wheel from the sdist. Returns (wheel, sdist). Raises ReleaseError."""
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(sources.tree)], sources.env)
    (wheel,), (sdist,) = out.glob("jetcluster-*.whl"), out.glob("jetcluster-*.tar.gz")
    if "-none-any" in wheel.name:
        raise ReleaseError(f"{wheel.name} has no compiled loops: a release needs a C compiler and Python's headers")
    return wheel, sdist


def check_reproducible(sources: Sources, made: Sequence[Path], folder: Path) -> None:
    """Builds the packages once more, elsewhere. Raises ReleaseError for other bytes."""
    tree, again = folder / "the same sources", folder / "dist"
    shutil.copytree(sources.tree, tree, symlinks=True)
    packages(replace(sources, tree=tree), again)
    for one in made:
        if one.read_bytes() != (again / one.name).read_bytes():
            raise ReleaseError(f"{one.name} is built with other bytes in another folder")


def image(sources: Sources, out: Path) -> str:
    """Writes the image, as `docker save` does it, and returns ""; or returns why there is none."""
    docker = os.environ.get("DOCKER", "docker")
    if shutil.which(docker) is None:
        return f"{docker} is not installed here"
    if subprocess.run([docker, "info"], capture_output=True, check=False).returncode:  # noqa: S603
        return "no docker daemon answers here"
    run([str(sources.tree / "deploy" / "build-image.sh"), "jetcluster"], sources.env)
    name = f"jetcluster:{sources.version}"
    path = out / f"jetcluster-{sources.version}-image.tar.gz"
    with (
        subprocess.Popen([docker, "save", name], stdout=subprocess.PIPE) as saved,  # noqa: S603
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=sources.epoch) as packed,
    ):
        assert saved.stdout is not None
        shutil.copyfileobj(saved.stdout, packed, 1 << 20)
    if saved.returncode:
        raise ReleaseError(f"docker save {name} ended with {saved.returncode}")
    return ""


def changes(text: str, version: str) -> str:
    """The changelog's section of the version, without its heading. Raises ReleaseError."""
    found = re.search(rf"^## {re.escape(version)}(?![\w.])[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ReleaseError(f"CHANGELOG.md has no section `## {version}`")
    return found[1].strip()


def check_versions(tree: Path, version: str) -> None:
    """Raises ReleaseError when the chart asks for an image of another version."""
    found = APP_VERSION.search((tree / "deploy/helm/jetcluster/Chart.yaml").read_text())
    if found is None or found[1] != version:
        raise ReleaseError(f"the chart's appVersion is {found and found[1]}, and this is {version}")


def note(sources: Sources, said: str, no_image: str, files: Sequence[str]) -> str:
    """The release note."""
    made = f"{sources.commit}{' with changes that are not committed' if sources.dirty else ''}"
    lines = [f"# jetcluster {sources.version}", "", said, "", "## Files", "", *(f"- `{name}`" for name in files)]
    if no_image:
        lines.append(f"- no image: {no_image}. `make image` builds it from the sources.")
    lines += [
        "",
        f"Made of commit {made}, with Python {platform.python_version()} and {compiler()}. "
        "`sha256sum -c SHA256SUMS` checks the files. `make release` of the same commit with the same Python, compiler "
        "and build tools makes the same wheel and the same sdist; an image has the packages of its day.",
        "",
    ]
    return "\n".join(lines)


def compiler() -> str:
    done = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=False)  # noqa: S607
    return done.stdout.partition("\n")[0] or "no C compiler"


def sums(folder: Path) -> str:
    """`sha256sum`'s lines for all files of the folder but SHA256SUMS itself."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def run(words: Sequence[str], env: dict[str, str]) -> None:
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise ReleaseError(f"{' '.join(words)[:200]}\n{(done.stdout + done.stderr)[-4000:]}")


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def release(out: Path, *, dirty: bool, with_image: bool) -> None:
    """Makes and tries everything, and only then replaces `out`. Raises ReleaseError, SbomError, TrialError."""
    with tempfile.TemporaryDirectory(prefix="jetcluster-release-") as name:
        work = Path(name)
        tree, made = work / "sources", work / "dist"
        tree.mkdir()
        made.mkdir()
        sources = export(TOP, tree, dirty=dirty)
        said = changes((tree / "CHANGELOG.md").read_text(), sources.version)
        check_versions(tree, sources.version)
        say(f"jetcluster {sources.version} of {sources.commit[:12]}")
        wheel, sdist = packages(sources, made)
        say(f"{wheel.name}, {sdist.name}")
        check_reproducible(sources, (wheel, sdist), work / "in another folder")
        say("built in two folders, they have the same bytes")
        here = environment_of(work / "wheel", wheel)
        try_wheel(here)
        say("the wheel in an empty environment: `jetcluster demo` proves everything")
        for compiling in (True, False):
            try_sdist(work / f"sdist-{compiling}", sdist, wheel, compiling=compiling)
            say(f"the sdist with{'' if compiling else 'out'} a C compiler: so does it")
        bom = make_sbom(here.python, tree, sources.version, sources.env)
        (made / f"jetcluster-{sources.version}.cdx.json").write_text(bom)
        no_image = image(sources, made) if with_image else "left out by --no-image"
        say(f"no image: {no_image}" if no_image else "the image is built")
        text = note(sources, said, no_image, sorted(file.name for file in made.iterdir()))
        (made / f"RELEASE-{sources.version}.md").write_text(text)
        (made / "SHA256SUMS").write_text(sums(made))
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(made, out)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dirty", action="store_true", help="also with changes that are not committed")
    parser.add_argument("--no-image", action="store_true", help="leave the container image out")
    parser.add_argument("--out", type=Path, default=TOP / "dist", help="the folder, which is replaced (default: dist)")
    asked = parser.parse_args(words)
    try:
        release(asked.out, dirty=asked.dirty, with_image=not asked.no_image)
    except (ReleaseError, SbomError, TrialError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print((asked.out / "SHA256SUMS").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
