"""First, last and count by the servers' word (docs/spark-source.md)."""

from __future__ import annotations

from jetcluster.client.connection import Connection
from jetcluster.model.times import parse_rfc3339
from jetcluster.spark.bounds import StreamBounds, bounds
from tests.spark.streams import create, fill, numbered


def test_bounds_are_those_of_the_messages(servers: str, connection: Connection) -> None:
    create(connection, "BOUNDED")
    create(connection, "BOUNDED2")
    fill(connection, numbered("BOUNDED", 100))
    for seq in (1, 2, 50, 99):
        connection.api("STREAM.MSG.DELETE.BOUNDED", {"seq": seq})

    def time(seq: int) -> int:
        return parse_rfc3339(connection.api("STREAM.MSG.GET.BOUNDED", {"seq": seq})["message"]["time"])

    options = {"servers": servers, "subscribe": "BOUNDED,BOUNDED2"}
    assert bounds(options) == {
        "BOUNDED": StreamBounds(96, 3, 100, time(3), time(100)),
        "BOUNDED2": StreamBounds(0),
    }
    ones = [n for n in range(1, 101) if n % 7 == 1 and n not in (1, 2, 50, 99)]
    assert bounds(options | {"subjects": "bounded.1"})["BOUNDED"] == StreamBounds(
        len(ones), ones[0], ones[-1], time(ones[0]), time(ones[-1])
    )
