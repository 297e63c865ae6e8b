"""Very many subscriptions of one client: what they cost, and that they are bounded. A million of them is what
`python -m scripts.bench_subscriptions` measures."""

from __future__ import annotations

from scripts.bench_subscriptions import BYTES_LIMIT, measure
from tests.unit.server.support import Bench


def test_memory_and_the_cost_of_a_publish_stay() -> None:
    found = measure(20_000)
    assert found.bytes_each < 2 * BYTES_LIMIT  # of few, more of the memory is the process's own
    assert found.publish_with_all_us < 5 * found.publish_us, "the machine is shared: twice is what the script asks"
    assert found.publish_after_us < 5 * found.publish_us
    assert found.seconds < 20


def test_a_limit_is_a_limit() -> None:
    bench = Bench(max_subscriptions=1000)
    client = bench.client(*[b"SUB a.%d 1%d" % (n, n) for n in range(1000)])
    assert client.ask(b"SUB b 2") == b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert client.ask(b"UNSUB 17", b"SUB b 2") == b""
    assert len(client.connection.subscriptions) == 1000
