"""The configuration of a stream that is made out of an archive."""

from __future__ import annotations

from typing import Any

from jetcluster.pipeline import main, restore
from jetcluster.pipeline.restore_plan import target_config

ARCHIVED: dict[str, Any] = {
    "name": "ORDERS", "subjects": ["orders.>"], "num_replicas": 3, "max_age": 10**9, "max_msgs": 5,
    "mirror": {"name": "X"}, "mirror_direct": True, "sealed": True, "republish": {"src": ">", "dest": "r.>"},
    "subject_transform": {"src": "a", "dest": "b"},
    "metadata": {"a": "b", "jetcluster.retention_guard.consumer": "c"},
    "retention_guard": {"consumer": "c"},
}  # fmt: skip


def config(*words: str) -> dict[str, Any]:
    args = main.parser_of("restore", restore).parse_args(["--from", "x", *words])  # type: ignore[arg-type]
    return target_config(ARCHIVED, args, "NEW", 17)


def test_exact_keeps_all_but_ties_to_other_streams() -> None:
    assert config() == {
        "name": "NEW", "subjects": ["orders.>"], "num_replicas": 3, "max_age": 10**9, "max_msgs": 5,
        "republish": {"src": ">", "dest": "r.>"}, "subject_transform": {"src": "a", "dest": "b"},
        "metadata": {"a": "b"},
    }  # fmt: skip


def test_publishing_does_not_transform_twice() -> None:
    made = config("--mode", "fence")
    assert (made["first_seq"], made["allow_atomic"]) == (17, True)
    assert not {"subject_transform", "republish", "mirror", "sealed"} & made.keys()
    assert "allow_atomic" not in config("--mode", "msgid")


def test_changes() -> None:
    made = config("--replicas", "1", "--subjects", "a.>, b", "--no-limits")
    assert (made["num_replicas"], made["subjects"]) == (1, ["a.>", "b"])
    assert (made["max_age"], made["max_msgs"], made["max_msgs_per_subject"]) == (0, -1, -1)
