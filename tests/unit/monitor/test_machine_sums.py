"""The pages of several workers as one."""

from __future__ import annotations

from jetcluster.monitor.machine_sums import labelled, merged, whole, worst
from jetcluster.monitor.source import Health


def test_numbers_are_added_up_and_the_rest_is_the_first_workers() -> None:
    one = {"server_name": "m", "connections": 2, "port": 4222, "http_req_stats": {"/varz": 1}, "tags": ["worker:0"],
           "jetstream": {"stats": {"memory": 1, "api": {"level": 3, "total": 5, "errors": 1}}},
           "disk_io_wait_stats": {"waits": 3, "max_wait_time": 9}}  # fmt: skip
    other = {"server_name": "m-w1", "connections": 3, "port": 4222, "http_req_stats": {"/jsz": 4}, "tags": ["worker:1"],
             "jetstream": {"stats": {"memory": 2, "api": {"level": 3, "total": 6, "errors": 0}}},
             "disk_io_wait_stats": {"waits": 4, "max_wait_time": 7}}  # fmt: skip
    assert merged("varz", {}, {1: other, 0: one}) == {
        "server_name": "m", "connections": 5, "port": 4222, "http_req_stats": {"/varz": 1, "/jsz": 4},
        "tags": ["worker:0"], "jetstream": {"stats": {"memory": 3, "api": {"level": 3, "total": 11, "errors": 1}}},
        "disk_io_wait_stats": {"waits": 7, "max_wait_time": 9},
    }  # fmt: skip


def connections(*counts: int) -> dict[str, object]:
    rows = [
        {"cid": cid, "out_msgs": count, "start": f"2026-01-01T00:00:0{cid}Z"} for cid, count in enumerate(counts, 1)
    ]
    return {"num_connections": len(rows), "total": len(rows), "offset": 0, "limit": 1024, "connections": rows}


def test_a_page_of_connections_is_sorted_and_cut_over_all_workers() -> None:
    answers = {0: connections(5, 1), 1: connections(9, 3, 4)}
    page = merged("connz", {"sort": "msgs_to", "offset": "1", "limit": "3"}, answers)
    assert [(row["worker"], row["out_msgs"]) for row in page["connections"]] == [(0, 5), (1, 4), (1, 3)]
    assert (page["num_connections"], page["total"], page["offset"], page["limit"]) == (3, 5, 1, 3)
    assert [row["cid"] for row in merged("connz", {}, answers)["connections"]] == [1, 1, 2, 2, 3]
    by_start = merged("connz", {"sort": "start"}, answers)["connections"]
    assert [row["start"][-2] for row in by_start] == ["1", "1", "2", "2", "3"]


def test_each_worker_gives_all_rows_that_a_later_page_may_have() -> None:
    assert whole({"offset": "10", "limit": "5", "sort": "cid"}) == {"limit": "15", "sort": "cid"}
    assert whole({"offset": "10"}) == {"limit": "1034"}
    assert whole({"limit": "5"}) == {"limit": "5"}


def test_streams_are_listed_by_account_and_accounts_are_counted_once() -> None:
    def page(stream: str, messages: int) -> dict[str, object]:
        detail = {"name": "$G", "storage": messages, "stream_detail": [{"name": stream}]}
        return {"streams": 1, "messages": messages, "total": 1, "meta_cluster": {"cluster_size": 2}, "accounts": 1,
                "account_details": [detail]}  # fmt: skip

    found = merged("jsz", {}, {0: page("A", 3), 1: page("B", 4)})
    assert (found["streams"], found["messages"], found["total"], found["accounts"]) == (2, 7, 1, 1)
    assert found["meta_cluster"] == {"cluster_size": 2}
    (account,) = found["account_details"]
    assert account == {"name": "$G", "storage": 7, "stream_detail": [{"name": "A"}, {"name": "B"}]}


def test_streams_in_pages_are_those_of_the_machine() -> None:
    """Each worker gives its first ones, in order of account and name."""
    assert whole({"stream-offset": "3", "stream-limit": "2"}) == {"stream-limit": "5"}

    def page(**accounts: str) -> dict[str, object]:
        details = [
            {"name": f"name of {id_}", "id": id_, "stream_detail": [{"name": name} for name in names]}
            for id_, names in accounts.items()
        ]
        return {"stream_total": sum(map(len, accounts.values())), "account_details": details}

    answers = {0: page(A="ac", B="y"), 1: page(A="bd", C="z")}
    seen = []
    for offset in range(0, 8, 2):
        found = merged("jsz", {"stream-offset": str(offset), "stream-limit": "2"}, answers)
        assert found["stream_total"] == 6
        assert all(one["stream_detail"] for one in found["account_details"]), "accounts of the page only"
        seen.append([one["id"] + row["name"] for one in found["account_details"] for row in one["stream_detail"]])
    assert seen == [["Aa", "Ab"], ["Ac", "Ad"], ["By", "Cz"], []]


def test_a_hit_rate_is_that_of_all_look_ups() -> None:
    answers = {
        0: {"num_matches": 30, "cache_hit_rate": 1.0, "max_fanout": 2},
        1: {"num_matches": 10, "cache_hit_rate": 0.5, "max_fanout": 7},
    }
    assert merged("subsz", {}, answers) == {
        "num_matches": 40, "cache_hit_rate": 0.875, "max_fanout": 7, "offset": 0, "limit": 1024,
    }  # fmt: skip


def test_a_machine_is_as_healthy_as_its_worst_worker() -> None:
    well, bad = Health(200, {"status": "ok"}), Health(503, {"status": "unavailable", "error": "no leader"})
    assert worst({0: well, 1: well}) == well
    assert worst({0: well, 1: bad}) == Health(503, {"status": "unavailable", "error": "worker 1: no leader"})
    assert worst({0: well, 1: None}).body["error"] == "worker 1: does not answer"


def test_a_restart_takes_all_workers_away() -> None:
    safe, unsafe = (
        Health(200, {"status": "ok", "groups": 2}),
        Health(503, {"status": "unavailable", "error": "1 of 3 groups would lose their majority", "groups": 3,
                     "unsafe": 1, "first": ["A"]}),
    )  # fmt: skip
    assert worst({0: safe, 1: safe}).body == {"status": "ok", "groups": 4}
    found = worst({0: safe, 1: unsafe})
    assert (found.status, found.body["groups"], found.body["unsafe"]) == (503, 5, 1)


def test_metrics_say_which_worker_they_are_of() -> None:
    text = b'# HELP a x\n# TYPE a gauge\na 1\na{k="v w"} 2\n# TYPE b counter\nb_total 3\n'
    assert labelled({0: text, 1: b"# HELP a x\n# TYPE a gauge\na 4\n# TYPE c gauge\nc 5\n"}).decode().splitlines() == [
        "# HELP a x", "# TYPE a gauge", 'a{worker="0"} 1', 'a{worker="0",k="v w"} 2', 'a{worker="1"} 4',
        "# TYPE b counter", 'b_total{worker="0"} 3', "# TYPE c gauge", 'c{worker="1"} 5',
    ]  # fmt: skip
