"""The steps of `jetcluster decommission` against a scripted cluster (cli/decommission.py)."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.cli import decommission
from jetcluster.cli.common import ServerRefusedError
from jetcluster.cli.decommission import EVACUATE, REMOVE, Decommission

GONE = {"error": {"code": 400, "err_code": 10044, "description": "server is not a member of the cluster"}}
NO_LEADER = {"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}}


def left(assigned: int, replicas: int | None, *, online: bool = True, stuck: tuple[str, ...] = ()) -> dict[str, Any]:
    held = None if replicas is None else {"replicas": replicas, "leaders": 0, "consumers": 0}
    meta = {"voters": 3, "current": 3, "needed": 2}
    return {"name": "n3", "peer": "P", "online": online, "assigned": assigned, "held": held, "stuck": list(stuck),
            "meta": meta}  # fmt: skip


class Scripted:
    """A link and its connection: answers in order."""

    def __init__(self, script: tuple[tuple[str, dict[str, Any]], ...]) -> None:
        self.script = list(script)

    def connection(self, _timeout: float) -> Any:
        return self

    def next(self) -> None: ...

    def request(self, subject: str, body: bytes, timeout: float) -> Any:
        wanted, answer = self.script.pop(0)
        assert subject == wanted

        class Reply:
            def json(self) -> dict[str, Any]:
                return answer

        return Reply()

    def close(self) -> None: ...


def scripted(*script: tuple[str, dict[str, Any]]) -> tuple[Decommission, list[str]]:
    said: list[str] = []
    link: Any = Scripted(script)
    return Decommission(link, "n3", 5.0, said.append), said


def left_of(work: Decommission) -> list[Any]:
    link: Any = work.link
    return list(link.script)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decommission, "LOOK_SECONDS", 0.001)


def test_it_waits_until_the_server_is_empty_removes_it_and_verifies() -> None:
    work, said = scripted(
        (EVACUATE, left(2, 2)), (EVACUATE, NO_LEADER), (EVACUATE, left(0, 1, stuck=("S: why",))),
        (EVACUATE, left(0, 0)), (REMOVE, {"success": True}), (EVACUATE, GONE),
    )  # fmt: skip
    work.run()
    assert not left_of(work) and len(said) == 5
    assert "2 streams assigned, 2 replicas" in said[0] and "3 of 3 caught up, 2 needed" in said[0]
    assert "stuck: S: why" in said[1] and "verified" in said[-1]


def test_a_server_that_is_down_has_nothing_to_say() -> None:
    work, said = scripted((EVACUATE, left(0, None, online=False)), (REMOVE, {"success": True}), (EVACUATE, GONE))
    work.run()
    assert "not connected" in said[0]


def test_a_run_after_the_removal_says_that_there_is_no_such_server() -> None:
    work, _ = scripted((EVACUATE, GONE))
    with pytest.raises(ServerRefusedError, match=r"^n3: server is not a member of the cluster$"):
        work.run()


def test_refusals_end_it_before_anything_is_removed() -> None:
    refused = {"error": {"code": 500, "err_code": 10041, "description": "3 streams find no other place"}}
    work, _ = scripted((EVACUATE, refused))
    with pytest.raises(ServerRefusedError, match="3 streams"):
        work.run()
    assert not left_of(work)


def test_a_server_of_that_name_that_is_there_again_is_no_success() -> None:
    work, _ = scripted((EVACUATE, left(0, 0)), (REMOVE, {"success": True}), (EVACUATE, left(0, 0)))
    with pytest.raises(ServerRefusedError, match="again"):
        work.run()
