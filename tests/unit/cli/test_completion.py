"""Completion, as the shells ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jetcluster
from jetcluster.cli.commands import Shell

ROOT = str(Path(jetcluster.__file__).parents[1])
BASH = """
{script}
COMP_WORDS=({words}); COMP_CWORD={at}; _jetcluster_completion jetcluster; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which `jetcluster` is this tree's."""
    program = folder / "bin" / "jetcluster"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m jetcluster "$@"\n')
        program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": ROOT, "XDG_CONFIG_HOME": str(folder), "HOME": str(folder), **more}


def output(words: list[str], env: dict[str, str]) -> str:
    return subprocess.run(words, env=env, check=True, capture_output=True, text=True, timeout=30).stdout


def completed(folder: Path, line: str) -> list[str]:
    """The words that zsh is offered behind `line`, by the question that its script asks."""
    env = environment(folder, _JETCLUSTER_COMPLETE="complete_fish", _TYPER_COMPLETE_ARGS=line,
                      _TYPER_COMPLETE_FISH_ACTION="get-args")  # fmt: skip
    return [found.split("\t")[0] for found in output(["jetcluster"], env).splitlines()]


@pytest.mark.parametrize("shell", [shell.value for shell in Shell])
def test_the_script_of_each_shell_is_one_that_it_can_read(shell: str, tmp_path: Path) -> None:
    script = output(["jetcluster", "completion", shell], environment(tmp_path))
    assert "_JETCLUSTER_COMPLETE=complete_" + shell in script
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([shell, "-n", str(file)], check=True, timeout=20)


def test_bash_completes_with_it(tmp_path: Path) -> None:
    env = environment(tmp_path)
    script = output(["jetcluster", "completion", "bash"], env)
    for words, at, expected in (
        ("jetcluster st", 1, ["streams", "status"]),
        ("jetcluster health --tlsc", 2, ["--tlscert", "--tlsca"]),
    ):
        text = BASH.format(script=script, words=words, at=at)
        assert sorted(output(["bash", "-c", text], env).split()) == sorted(expected)


def test_commands_options_contexts_and_what_typer_does_not_read(tmp_path: Path) -> None:
    contexts = tmp_path / "nats" / "context"
    contexts.mkdir(parents=True)
    (contexts / "prod.json").write_text("{}")
    assert {"serve", "up", "pipeline", "status", "object"} <= set(completed(tmp_path, "jetcluster "))
    assert completed(tmp_path, "jetcluster status --context p") == ["prod"]
    assert "--store_dir" in completed(tmp_path, "jetcluster serve --st")
    assert completed(tmp_path, "jetcluster pipeline a") == ["archive", "audit"]
    assert completed(tmp_path, "jetcluster object a") == ["add"]


def test_a_variable_left_in_the_environment_starts_no_completion(tmp_path: Path) -> None:
    env = environment(tmp_path, _JETCLUSTER_COMPLETE="source_bash")
    assert "nats-server: v" in output(["jetcluster", "version"], env)
