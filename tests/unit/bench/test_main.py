"""`python -m bench`: each figure has a module that takes its options, and small ones run here."""

from __future__ import annotations

import argparse
import importlib

import pytest

from bench.__main__ import FIGURES, PAGES, main


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in (*PAGES, "spark")])
def test_each_figure_has_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"bench.scenarios.{name}")
    parser = argparse.ArgumentParser()
    module.add_options(parser)
    assert parser.parse_args([])
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert f"python -m bench {name}" in capsys.readouterr().out


def test_without_a_name_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main([]), main(["nothing"])) == (0, 1)
    said = capsys.readouterr().out
    assert all(said.count(f"  {name:14} ") == 2 for name in FIGURES)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["searches --subjects 2000", "long_commands --messages 1000"])
def test_a_figure_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(name.split()) == 0
    assert capsys.readouterr().out.count("\n") >= 13
