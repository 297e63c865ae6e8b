from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from jetcluster.api import dispatch
from jetcluster.api import request as api_request
from jetcluster.cluster import meta_rescue, requests
from jetcluster.errors import NOT_AVAILABLE, by_code
from jetcluster.model.advisory import Event
from tests.unit.api.fake_cluster import Client


async def test_every_endpoint_is_subscribed_and_nothing_else() -> None:
    from jetcluster.api import endpoints

    client = Client()
    bus = client.bus
    assert not bus.has_interest(b"$JS.API.META.LEADER.STEPDOWN") and not bus.has_interest(b"$JS.API.SERVER.REMOVE")
    assert not bus.has_interest(b"$JS.API.ACCOUNT.PURGE.APP")
    dispatch.JetStreamApi(client.context, bus, system=True).start()
    for endpoint in endpoints.ALL:
        subject = ".".join(["$JS.API", endpoint.name, *["x"] * endpoint.args[0]])
        assert bus.has_interest(subject.encode()), subject
    # Whoever answers these subscribes to them itself: "no responders" must stay visible.
    assert not bus.has_interest(b"$JS.API.DIRECT.GET.S")
    assert not bus.has_interest(b"$JS.API.DIRECT.GET.S.subject")
    assert not bus.has_interest(b"$JS.API.CONSUMER.MSG.NEXT.S.C")
    assert not bus.has_interest(b"$JS.hub.API.INFO")


async def test_a_put_by_the_domain_s_name_reaches_the_bucket() -> None:
    bus = Client(domain="hub").bus
    found: list[tuple[bytes, ...]] = []
    for subject in (b"$KV.b.>", b"in"):
        bus.subscribe(subject, lambda *message: found.append(message[:4]))
    headers = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
    bus.publish(b"$JS.hub.API.$KV.b.a.key", b"v", b"in", headers)
    bus.publish(b"$JS.hub.API.$KV.none.key", b"v", b"in")
    bus.publish(b"$JS.other.API.$KV.b.key", b"v", b"in")
    assert found == [
        (b"$KV.b.a.key", b"in", headers, b"v"),
        (b"in", b"", b"NATS/1.0 503\r\n\r\n", b""),
    ]


async def test_a_request_whose_code_cannot_be_loaded_is_answered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has no file descriptors left, for a moment."""

    def fails() -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(dispatch, "_loaded", [])
    with monkeypatch.context() as patched:
        patched.setattr(dispatch, "_import_find", fails)
        assert (await client.ask("STREAM.NAMES"))["error"]["err_code"] == 10008
    assert "error" not in await client.ask("STREAM.NAMES")


async def test_a_defect_is_answered_and_logged(client: Client) -> None:

    async def broken(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("secret detail")

    client.cluster.meta_request = broken  # type: ignore[method-assign]
    reply = await client.ask("STREAM.NAMES")
    assert reply["error"] == {"code": 500, "err_code": 10051, "description": "internal error"}
    assert client.log.lines[0][:2] == ("error", "API request failed")
    assert client.api.counters.errors == 1


async def test_a_request_without_reply_subject_is_carried_out(client: Client) -> None:
    client.bus.publish(b"$JS.API.STREAM.CREATE.S", b'{"name":"S"}')
    async with asyncio.timeout(5):
        while client.cluster.machine.assignment("A", "S") is None:
            await asyncio.sleep(0.001)


async def test_the_queue_is_bounded_and_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_RUNNING", 1)
    client = Client()
    client.api.max_queued = 3
    told: list[Event] = []
    client.context.advise = told.append
    got: list[int] = []
    client.bus.subscribe(b"in.*", lambda s, r, h, p, o: got.append(int(s[3:])))
    for i in range(10):
        client.bus.publish(b"$JS.API.STREAM.NAMES", b"", b"in.%d" % i)
    async with asyncio.timeout(5):
        while len(got) < 4:
            await asyncio.sleep(0.001)
    assert (got, client.api.dropped) == ([0, 7, 8, 9], 6)
    assert client.log.lines == [("warning", "API requests dropped", {"account": "A", "total": 6})]
    (event,) = told
    assert (event.subject, event.fields["dropped"]) == (b"$JS.EVENT.ADVISORY.API.LIMIT_REACHED", 6)


async def test_queued_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_QUEUED_BYTES", 100)
    monkeypatch.setattr(dispatch, "MAX_RUNNING", 0)
    client = Client()
    for _ in range(5):
        client.bus.publish(b"$JS.API.STREAM.NAMES", b"x" * 40)
    assert client.api.dropped == 3
    client.bus.publish(b"$JS.API.STREAM.INFO.S")
    client.bus.publish(b"$JS.API.CONSUMER.INFO.S.c")
    assert client.api.waiting() == (4, 2), "monitoring shows what waits"
    await client.api.stop()


async def test_stop_takes_no_more_and_cancels(client: Client) -> None:
    await client.create("S")
    client.cluster.refuse["S"] = None
    client.bus.publish(b"$JS.API.STREAM.INFO.S", b"", b"in.1")
    await asyncio.sleep(0)
    await client.api.stop()
    assert client.bus.subscriptions == []


async def test_advisories_of_what_happened_and_only_of_that() -> None:
    client = Client(domain="hub")
    events = client.bus.collect(b"$JS.EVENT.ADVISORY.STREAM.>")
    await client.create("S")
    await client.create("S")
    await client.create("S", max_msgs=1)
    await client.ask("STREAM.UPDATE.S", {"name": "S", "max_msgs": 1})
    await client.ask("STREAM.DELETE.S")
    assert [(subject.decode(), event["action"]) for subject, event in events] == [
        ("$JS.EVENT.ADVISORY.STREAM.CREATED.S", "create"),
        ("$JS.EVENT.ADVISORY.STREAM.UPDATED.S", "modify"),
        ("$JS.EVENT.ADVISORY.STREAM.DELETED.S", "delete"),
    ]
    event = events[0][1]
    assert list(event) == ["type", "id", "timestamp", "stream", "action", "client", "domain"]
    assert event["type"] == "io.nats.jetstream.advisory.v1.stream_action"
    assert (event["client"], event["domain"], len(event["id"])) == ({"acc": "A", "user": "u1"}, "hub", 22)
    assert len({e["id"] for _, e in events}) == 3


async def test_audit_of_all_but_successful_msg_gets(client: Client) -> None:
    await client.create("S")
    client.cluster.answers["msg_get"] = lambda body: {"response": "{}"}
    events = client.bus.collect(b"$JS.EVENT.ADVISORY.API")
    await client.ask("STREAM.MSG.GET.S", {"seq": 1})
    await client.ask("STREAM.MSG.GET.NONE", {"seq": 1})
    reply = await client.raw("$JS.API.STREAM.NAMES", b'{"offset":0}')
    await asyncio.sleep(0)
    assert [event["subject"] for _, event in events] == ["$JS.API.STREAM.MSG.GET.NONE", "$JS.API.STREAM.NAMES"]
    last = events[-1][1]
    assert (last["type"], last["server"]) == ("io.nats.jetstream.advisory.v1.api_audit", "N1")
    assert (last["request"], json.loads(last["response"])) == ('{"offset":0}', json.loads(reply))


def test_nothing_heavy_is_imported_before_the_first_request() -> None:
    import subprocess
    import sys

    code = "import sys, jetcluster.api.dispatch, jetcluster.cluster.meta_service; print('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


async def test_an_account_without_jetstream_leaves_imported_requests_to_the_other_account(client: Client) -> None:
    client.api.enabled = False
    client.api.answers_elsewhere = lambda subject: subject == b"$JS.API.STREAM.NAMES"
    got: list[bytes] = []
    client.bus.subscribe(b"in.*", lambda s, r, h, p, o: got.append(s))
    client.bus.publish(b"$JS.API.STREAM.NAMES", b"", b"in.1")
    client.bus.publish(b"$JS.API.STREAM.LIST", b"", b"in.2")
    async with asyncio.timeout(5):
        while not got:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert got == [b"in.2"]


async def test_an_account_that_imports_another_s_api_gets_no_answers_of_its_own(client: Client) -> None:
    """API subjects not imported have no responders: nats.go then binds to a consumer that it may not look up."""
    client.api.enabled = False
    client.api.answers_elsewhere = lambda subject: subject == b"$JS.API.INFO"
    got: list[tuple[bytes, bytes]] = []
    client.bus.subscribe(b"in.*", lambda s, r, h, p, o: got.append((s, h)))
    client.bus.publish(b"$JS.API.INFO", b"", b"in.1")
    client.bus.publish(b"$JS.API.CONSUMER.INFO.S.c", b"", b"in.2")
    await asyncio.sleep(0.05)
    assert got == [(b"in.2", b"NATS/1.0 503\r\n\r\n")]


async def test_one_deadline_for_all_that_a_request_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without quorum the stream's leader is asked in vain, and then the meta leader whether there is such a stream."""
    assert requests.DEADLINE_SECONDS < api_request.REQUEST_SECONDS < 5.0, "stock clients give up after 5 s"
    client = Client()
    await client.create("S")
    monkeypatch.setattr(api_request, "REQUEST_SECONDS", 0.35)
    asked: list[str] = []

    async def nobody(*question: Any) -> dict[str, Any]:
        asked.append(str(question[-2]))
        await asyncio.sleep(0.3)
        raise by_code(NOT_AVAILABLE)

    client.cluster.stream_request = nobody  # type: ignore[method-assign]
    client.cluster.meta_request = nobody  # type: ignore[method-assign]
    for endpoint, body in (("INFO", None), ("PURGE", None), ("MSG.GET", {"seq": 1})):
        asked.clear()
        start = time.monotonic()
        reply = await client.ask(f"STREAM.{endpoint}.S", body)
        assert reply["error"]["err_code"] == NOT_AVAILABLE
        assert time.monotonic() - start < 0.5, endpoint
        assert asked[1:] == ["lookup"]


async def test_a_purge_that_is_under_way_is_waited_for(monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    await client.create("S")
    monkeypatch.setattr(api_request, "REQUEST_SECONDS", 0.2)

    async def slow(assignment: Any, kind: str, body: Any, under_way: Any) -> dict[str, Any]:
        if not body["seq"]:
            under_way()
        await asyncio.sleep(0.4)
        return {"purged": 7}

    client.cluster.stream_request = slow  # type: ignore[method-assign]
    assert (await client.ask("STREAM.PURGE.S", None))["purged"] == 7
    assert (await client.ask("STREAM.PURGE.S", {"seq": 9}))["error"]["err_code"] == NOT_AVAILABLE


async def test_a_rescue_may_take_all_of_its_steps() -> None:
    found = (await dispatch.load_endpoints())(["META", "RESCUE"])
    assert found is not None
    steps = meta_rescue.LOOK_SECONDS + 3 * meta_rescue.STEP_SECONDS
    assert found[0].seconds is not None
    assert found[0].seconds > steps > api_request.REQUEST_SECONDS
