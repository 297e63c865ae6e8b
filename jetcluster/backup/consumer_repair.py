"""Consumers of a stream that is there already and has a point's messages: those that are not as in the backup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from jetcluster.errors import ApiError

Fields = dict[str, Any]

FROM_THE_START: Final = ("all", "by_start_sequence", "by_start_time")
"""Deliver policies of consumers that can be placed: one that is made with another now would leave out what is there."""


class ConsumerApi(Protocol):
    """Questions to the servers (`account.AccountReader`)."""

    def api(self, subject: str, body: object = None) -> Fields: ...
    def consumer(self, stream: str, name: str) -> Fields | None: ...


def floor_of(found: Mapping[str, Any]) -> int:
    return int(found["ack_floor"]["stream_seq"])


def behind(account: ConsumerApi, stream: str, wanted: Mapping[str, Fields]) -> dict[str, Fields | None]:
    """Returns the durable consumers that are not there (None), and those whose ack floor is before the stored one
    (their info). Others end by themselves."""
    found: dict[str, Fields | None] = {}
    for name, entry in wanted.items():
        if entry["config"].get("durable_name"):
            there = account.consumer(stream, name)
            if there is None or floor_of(there) < floor_of(entry["state"]):
                found[name] = there
    return found


def put_right(account: ConsumerApi, stream: str, wanted: Mapping[str, Fields], say: Callable[[str], None]) -> list[str]:
    """Makes the consumers that are not there, and sets those that nobody used to their ack floors: what was pending
    comes again. Returns a line for each one that it cannot put right."""
    wrong: list[str] = []
    for name, there in behind(account, stream, wanted).items():
        floor = floor_of(wanted[name]["state"])
        if there is not None and there["delivered"]["consumer_seq"]:
            wrong.append(
                f"{stream}: consumer {name} is at {floor_of(there)}, in the backup at {floor}, and was used since"
            )
            continue
        policy = wanted[name]["config"].get("deliver_policy") or FROM_THE_START[0]
        if policy not in FROM_THE_START:
            wrong.append(f"{stream}: consumer {name} is not in its place, and its deliver policy is {policy}")
            continue
        try:
            _place(account, stream, name, wanted[name], there)
        except ApiError as error:
            wrong.append(f"{stream}: consumer {name} cannot be put right: {error}")
        else:
            say(f"{stream}: consumer {name} {'was' if there else 'is made and'} set behind its ack floor {floor}")
    return wrong


def _place(account: ConsumerApi, stream: str, name: str, entry: Fields, there: Fields | None) -> None:
    """Raises ApiError; then a consumer that was not there is not there."""
    if there is None:
        body = {"stream_name": stream, "config": entry["config"], "action": "create"}
        account.api(f"CONSUMER.CREATE.{stream}.{name}", body)
    if floor := floor_of(entry["state"]):
        try:
            account.api(f"CONSUMER.RESET.{stream}.{name}", {"seq": floor + 1})
        except ApiError:
            if there is None:
                account.api(f"CONSUMER.DELETE.{stream}.{name}")
            raise
