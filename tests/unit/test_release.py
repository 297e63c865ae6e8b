"""`make release`: what it refuses, what it exports, and what its note and sums say."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts import release
from scripts.release import ReleaseError, Sources, changes, check_reproducible, check_versions, export, note, sums

CHANGELOG = """# Changelog

## 0.3.0 - unreleased

### Added

- Later.

## 0.2.0 - 2026-01-01

### Added

- First.
- Second.

## 0.2
"""


def git(tree: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository with one commit."""
    found = tmp_path / "top"
    (found / "jetcluster").mkdir(parents=True)
    (found / "jetcluster" / "__init__.py").write_text('"""x"""\n\n__version__ = "1.2.3"\n')
    (found / ".gitignore").write_text("ignored\n")
    (found / "link").symlink_to(".gitignore")
    git(found, "init", "-q")
    git(found, "add", "-A")
    git(found, "commit", "-qm", "x", "--date", "2026-01-02T03:04:05Z")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "export"
    found.mkdir()
    return found


def test_the_export_is_the_commit_and_nothing_that_lies_about(top: Path, folder: Path) -> None:
    (top / "ignored").touch()
    sources = export(top, folder, dirty=False)
    assert sorted(file.name for file in folder.rglob("*") if file.is_file()) == [".gitignore", "__init__.py", "link"]
    assert sources.version == "1.2.3"
    assert not sources.dirty
    assert (folder / "link").is_symlink()
    assert sources.env["SOURCE_DATE_EPOCH"] == str(sources.epoch)
    assert len(sources.commit) == 40


@pytest.mark.parametrize("name", ["jetcluster/__init__.py", "new"])
def test_a_dirty_tree_is_refused_unless_told(top: Path, folder: Path, name: str) -> None:
    (top / name).write_text('__version__ = "9"\n')
    with pytest.raises(ReleaseError, match=name):
        export(top, folder, dirty=False)
    assert list(folder.iterdir()) == []
    sources = export(top, folder, dirty=True)
    assert sources.dirty
    assert sources.version == ("1.2.3" if name == "new" else "9")
    assert (folder / "link").is_symlink()
    assert not (folder / "new").exists(), "only what git knows"


def test_what_is_not_a_repository_is_refused(folder: Path) -> None:
    with pytest.raises(ReleaseError, match="no git repository"):
        export(folder, folder, dirty=True)


def test_a_repository_around_the_tree_is_not_taken_for_it(top: Path, folder: Path) -> None:
    with pytest.raises(ReleaseError, match="no git repository"):
        export(top / "jetcluster", folder, dirty=True)


def test_the_note_has_the_section_of_its_version() -> None:
    assert changes(CHANGELOG, "0.2.0") == "### Added\n\n- First.\n- Second."
    assert changes(CHANGELOG, "0.2") == ""
    with pytest.raises(ReleaseError, match=r"no section `## 0\.2\.1`"):
        changes(CHANGELOG, "0.2.1")


def test_the_note_says_what_is_there_and_why_something_is_not(top: Path, folder: Path) -> None:
    sources = export(top, folder, dirty=False)
    text = note(sources, "- First.", "no docker daemon answers here", ["a.whl", "b.tar.gz"])
    assert text.startswith(
        "# jetcluster 1.2.3\n\n- First.\n\n## Files\n\n- `a.whl`\n- `b.tar.gz`\n- no image: no docker daemon"
    )
    assert sources.commit in text
    assert "no image" not in note(sources, "", "", [])


def test_the_chart_asks_for_this_version() -> None:
    check_versions(release.TOP, Sources(release.TOP, "", 0, dirty=False).version)
    with pytest.raises(ReleaseError, match="appVersion"):
        check_versions(release.TOP, "0.0.1")


def test_sha256sum_accepts_the_sums(folder: Path) -> None:
    (folder / "b").write_bytes(b"b")
    (folder / "a").write_bytes(b"a")
    (folder / "SHA256SUMS").write_text(sums(folder))
    assert [line.split()[1] for line in sums(folder).splitlines()] == ["a", "b"]
    command = ["sha256sum", "--strict", "-c", "SHA256SUMS"]
    assert subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0
    (folder / "a").write_bytes(b"c")
    assert subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("same", [True, False])
def test_other_bytes_in_another_folder_are_an_error(
    top: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    def packages(sources: Sources, out: Path) -> None:
        out.mkdir()
        assert (sources.tree / "link").is_symlink(), "an sdist has links as links"
        (out / "x.whl").write_text(sources.commit if same else str(sources.tree))

    monkeypatch.setattr(release, "packages", packages)
    sources = export(top, folder, dirty=False)
    packages(sources, tmp_path / "dist")
    if same:
        check_reproducible(sources, [tmp_path / "dist/x.whl"], tmp_path / "again")
    else:
        with pytest.raises(ReleaseError, match=r"x\.whl is built with other bytes"):
            check_reproducible(sources, [tmp_path / "dist/x.whl"], tmp_path / "again")


def test_a_wheel_without_loops_is_not_released(top: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_words: Any, _env: Any) -> None:
        (folder / "jetcluster-1.2.3-py3-none-any.whl").touch()
        (folder / "jetcluster-1.2.3.tar.gz").touch()

    monkeypatch.setattr(release, "run", run)
    with pytest.raises(ReleaseError, match="no compiled loops"):
        release.packages(Sources(top, "", 0, dirty=False), folder)


@pytest.mark.parametrize(
    ("docker", "why"), [("no-such-docker", "not installed"), ("false", "no docker daemon"), ("./docker", "")]
)
def test_an_image_is_made_where_docker_runs(
    top: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, docker: str, why: str
) -> None:
    program = folder / "docker"
    program.write_text('#!/bin/sh\n[ "$1" != save ] || echo "image $2"\n')
    program.chmod(0o755)
    (top / "deploy").mkdir()
    builder = top / "deploy" / "build-image.sh"
    builder.write_text(f'#!/bin/sh\necho "$1" > {folder}/built\n')
    builder.chmod(0o755)
    monkeypatch.setenv("DOCKER", str(program) if docker == "./docker" else docker)
    out = folder / "dist"
    out.mkdir()
    said = release.image(Sources(top, "", 7, dirty=False), out)
    assert why in said and bool(why) == bool(said)
    made = list(out.iterdir())
    if why:
        assert made == []
    else:
        assert [file.name for file in made] == ["jetcluster-1.2.3-image.tar.gz"]
        assert subprocess.run(["zcat", made[0]], capture_output=True, check=True).stdout == b"image jetcluster:1.2.3\n"
        assert (folder / "built").read_text() == "jetcluster\n"


def test_a_refusal_is_a_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "kept").touch()
    monkeypatch.setattr(release, "TOP", tmp_path)
    assert release.main(["--out", str(tmp_path)]) == 1
    assert "no git repository" in capsys.readouterr().err
    assert (tmp_path / "kept").exists(), "what was released before stays"
