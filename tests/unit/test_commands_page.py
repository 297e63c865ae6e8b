"""docs/commands.md says what `--help` says."""

from __future__ import annotations

from scripts import commands_page

PAGE = commands_page.PAGE.read_text()


def test_the_page_is_as_the_commands_are() -> None:
    assert commands_page.problems(PAGE) == []
    old = PAGE.replace("Show it again and again", "Show it twice", 1)
    assert commands_page.problems(old) == ["commands.md: it is old: python -m scripts.commands_page --write"]
    assert commands_page.rendered(old) == PAGE
    cut = PAGE.replace("<!-- command: object add -->", "").replace("## jetcluster serve", "## serve")
    assert commands_page.problems(cut) == [
        "commands.md: nothing about `jetcluster object add`", "commands.md: nothing about `jetcluster serve`",
    ]  # fmt: skip


def test_every_option_of_help_is_on_the_page() -> None:
    for name, command in commands_page.commands().items():
        text = PAGE.partition(f"<!-- command: {name} -->")[2].partition("<!-- end -->")[0]
        text += PAGE.partition("<!-- connection -->")[2].partition("<!-- end -->")[0]
        for param in command.params:
            name = param.opts[0] if param.opts[0][0] == "-" else commands_page.argument_name(param)
            assert getattr(param, "hidden", False) or f"`{name}`".replace("|", "\\|") in text, (command.name, name)
