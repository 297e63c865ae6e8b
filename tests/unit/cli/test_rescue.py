from __future__ import annotations

import errno
from pathlib import Path

import pytest

from jetcluster import faults
from jetcluster.cli import rescue
from jetcluster.cli.common import DONE, REFUSED
from jetcluster.cli.rescue import UNUSABLE, run_rescue
from jetcluster.cluster import rescue_record
from jetcluster.mesh.identity import RESCUES_NAME
from tests.unit.node.stopped import Stopped, hurt


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    stopped = Stopped(tmp_path)
    stopped.stream("S", "n1", "n2", "n3")
    stopped.stream("ONE", "n3")
    stopped.fill("n1", {"S": (40, 12)})
    stopped.fill("n2", {"S": (40, 12)})
    hurt(stopped.folder("n2"), stopped.gids["S"], 25)
    return stopped


class Terminal:
    def __init__(self, answer: str | None = None) -> None:
        self.lines: list[str] = []
        self.asked: list[str] = []
        self.answer = answer

    def ask(self, prompt: str) -> str:
        self.asked.append(prompt)
        if self.answer is None:
            raise EOFError
        return self.answer

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def run(stopped: Stopped, terminal: Terminal, *names: str, keep: str = "", stream: str = "", **flags: bool) -> int:
    stores = [stopped.root / name for name in names]
    kept = stopped.root / keep if keep else None
    return run_rescue(stores, stream, kept, say=terminal.lines.append, ask=terminal.ask, **flags)


def test_all_streams_are_shown(stopped: Stopped) -> None:
    terminal = Terminal()
    assert run(stopped, terminal, "n1", "n2") == DONE
    first, second = terminal.text.split("A/ONE", 1)
    assert first.startswith("A/S: R3, voters n1, n2, n3\n  n1: whole; log to entry 40 of term 1")
    assert "  n2: its journal is damaged: it does not vote; log to entry 23" in first
    assert (
        "  n3: its store is not here\n" in first and f"Keep n1, the most advanced one: {stopped.folder('n1')}" in first
    )
    assert "its only replica is not here, so there is nothing to rescue. If that store is gone for good" in second
    assert not terminal.asked


def test_a_name_has_to_be_typed(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    for answer in ("", "S", "yes", None):
        terminal = Terminal(answer)
        assert run(stopped, terminal, "n2", keep="n1", stream="A/S") == REFUSED
        assert terminal.asked == ["Type A/S to go on: "]
        assert "not confirmed; nothing was changed" in capsys.readouterr().err
    assert not (stopped.folder("n1") / RESCUES_NAME).exists()
    terminal = Terminal("A/S")
    assert run(stopped, terminal, "n2", keep="n1", stream="A/S", dry_run=True) == DONE
    assert not terminal.asked and terminal.lines[-1] == "nothing was changed (--dry-run)"
    assert run(stopped, terminal, "n2", keep="n1", stream="A/S") == DONE
    assert "A/S is to be what n1 has (rescue 1). The replicas of n2, n3 are given up" in terminal.text
    assert "written to: " + ", ".join(str(stopped.folder(name)) for name in ("n1", "n2")) in terminal.lines
    assert rescue_record.read(stopped.folder("n1"))[0].stream == "S"


def test_yes_asks_nothing_and_a_worse_choice_is_pointed_out(stopped: Stopped) -> None:
    terminal = Terminal()
    assert run(stopped, terminal, "n1", keep="n2", stream="A/S", yes=True) == DONE
    assert not terminal.asked and "- n1 has more than n2: are you sure?" in terminal.lines
    assert any(line.startswith("- what n1 has and n2 does not: log entries up to 40") for line in terminal.lines)
    assert "- on n2: its journal is damaged: it does not vote" in terminal.lines


def test_the_command_is_run_again_where_it_says_so(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    stopped.fill("n3", {"S": (40, 12)})
    writes = 0

    def full() -> None:
        nonlocal writes
        writes += 1
        if writes == 2:
            raise OSError(errno.ENOSPC, "no room")

    with faults.armed("journal.write", full):
        assert run(stopped, Terminal(), "n3", keep="n2", stream="A/S", yes=True) == UNUSABLE
    assert "No space left on device" in (said := capsys.readouterr().err) and "run the command again" in said
    terminal = Terminal("A/S")
    assert run(stopped, terminal, "n3", keep="n2", stream="A/S") == DONE
    assert "A/S is to be what n2 has (rescue 1, which was begun). The replicas of n1, n3 are given up" in terminal.text
    assert any("only n1 may have had it" in line for line in terminal.lines) and terminal.asked
    assert run(stopped, Terminal("A/S"), "n3", keep="n2", stream="A/S") == REFUSED
    assert "was rescued here already (rescue 1): start the server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "keep", "stream", "code", "why"),
    [
        ((), "", "", UNUSABLE, "name at least one store"),
        (("nowhere",), "", "", UNUSABLE, "no node.json"),
        (("n1",), "", "A/T", REFUSED, "there is no stream A/T"),
        (("n1",), "", "S", REFUSED, "there is no stream S (ACCOUNT/NAME)"),
        ((), "n1", "", REFUSED, "name the stream with --stream"),
        ((), "n1", "A/ONE", REFUSED, "holds nothing of A/ONE"),
        (("n3",), "n1", "A/S", UNUSABLE, "has no data store"),
    ],
)
def test_refusals(
    stopped: Stopped,
    capsys: pytest.CaptureFixture[str],
    names: tuple[str, ...],
    keep: str,
    stream: str,
    code: int,
    why: str,
) -> None:
    assert run(stopped, Terminal("A/S"), *names, keep=keep, stream=stream) == code
    assert why in capsys.readouterr().err


def test_the_command_line_leads_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from jetcluster.cli.commands import run_command

    seen: list[object] = []

    def fake(stores: list[Path], stream: str, keep: Path | None, **flags: bool) -> int:
        seen.append((stores, stream, keep, flags))
        return 1

    monkeypatch.setattr(rescue, "run_rescue", fake)
    words = ["rescue", "--store", "a", "--store", "b", "--stream", "A/S", "--keep", "a", "--dry-run"]
    assert run_command(words) == 1
    flags = {"dry_run": True, "yes": False, "verify": False}
    assert seen == [([Path("a"), Path("b")], "A/S", Path("a"), flags)]
