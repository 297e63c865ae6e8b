"""`nats backup`: stock commands that read, check and change an archive of the server, and put it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testkit.harness import ProcessCluster
from tests.interop.test_nats_cli import Cli

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.usefixtures("tool"), pytest.mark.thorough]


async def filled(cli: Cli) -> None:
    """100 messages on one subject, 50 with a header on another, and a consumer that has had ten of them."""
    await cli("stream", "add", "S", "--subjects", "s.>", "--replicas", "3", "--allow-direct", "--defaults")
    await cli("consumer", "add", "S", "C", "--pull", "--defaults")
    await cli("pub", "s.a", "msg {{Count}}", "--count", "100", "--jetstream")
    await cli("pub", "s.b", "other {{Count}}", "-H", "K:v", "--count", "50", "--jetstream")
    await cli("consumer", "next", "S", "C", "--count", "10", "--ack")


async def restored(cli: Cli, archive: Path, name: str = "S") -> dict[str, Any]:
    """The state of a stream that comes back from an archive, in place of the one that is there."""
    if name in await cli.json("stream", "ls", "--json"):
        await cli("stream", "rm", name, "--force")
    await cli("backup", "restore", "stream", str(archive), "--no-progress")
    state: dict[str, Any] = (await cli.json("stream", "info", name, "--json"))["state"]
    return state


async def test_archives_are_read_checked_changed_and_restored(tidy: ProcessCluster, tool: str, tmp_path: Path) -> None:
    cli = Cli(tool, tidy.urls[0])
    await filled(cli)
    whole = tmp_path / "whole"
    await cli("backup", "stream", "S", str(whole), "--no-progress")
    told = await cli.json("backup", "info", str(whole), "--no-progress", "--json")
    declared = told["declared"]
    assert (declared["messages"], declared["bytes"], declared["last_seq"]) == (150, told["bytes"], 150)
    assert (told["messages"], told["num_subjects"], told["consumers"]) == (150, 2, ["C"])
    assert "sequences 1 to 150" in await cli("backup", "validate", str(whole), "--no-progress")

    part = tmp_path / "part"
    await cli("backup", "edit", str(whole), str(part), "--subject", "s.b", "--last-seq", "140")
    state = await restored(cli, part)
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (40, 101, 150)
    consumer = await cli.json("consumer", "info", "S", "C", "--json")
    assert (consumer["ack_floor"]["stream_seq"], consumer["num_pending"]) == (10, 40)
    assert "other 1" in await cli("consumer", "next", "S", "C", "--ack")

    anew = tmp_path / "anew"
    await cli("backup", "edit", str(whole), str(anew), "--header", "K:v", "--renumber")
    state = await restored(cli, anew)
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (50, 1, 50)
    assert "other 50" in await cli("stream", "get", "S", "50")


async def test_an_archive_without_names_is_restored(tidy: ProcessCluster, tool: str, tmp_path: Path) -> None:
    cli = Cli(tool, tidy.urls[1])
    await filled(cli)
    whole, hidden = tmp_path / "whole", tmp_path / "hidden"
    await cli("backup", "stream", "S", str(whole), "--no-progress")
    await cli("backup", "edit", str(whole), str(hidden), "--obfuscate")
    config = (await cli.json("backup", "info", str(hidden), "--no-progress", "--json"))["config"]
    name, subject = config["name"], config["subjects"][0].removesuffix(".>")
    assert name != "S" and subject != "s"
    found = await cli("backup", "lookup", str(tmp_path / "hidden.keys.json"), name, subject)
    assert "S" in found and "s" in found
    assert (await restored(cli, hidden, name))["messages"] == 150
    (consumer,) = await cli.json("consumer", "ls", name, "--json")
    assert (await cli.json("consumer", "info", name, consumer, "--json"))["num_pending"] == 140
    await cli("stream", "rm", name, "--force")


async def test_an_account_comes_back(tidy: ProcessCluster, tool: str, tmp_path: Path) -> None:
    cli = Cli(tool, tidy.urls[2])
    await filled(cli)
    await cli("stream", "add", "T", "--subjects", "t", "--replicas", "1", "--defaults")
    await cli("backup", "account", str(tmp_path / "all"), "--force")
    for name in ("S", "T"):
        await cli("stream", "rm", name, "--force")
    await cli("backup", "restore", "account", str(tmp_path / "all"))
    assert sorted(await cli.json("stream", "ls", "--json")) == ["S", "T"]
    assert (await cli.json("stream", "info", "S", "--json"))["state"]["messages"] == 150
