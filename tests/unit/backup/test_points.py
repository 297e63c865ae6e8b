"""The points of runs against an account in memory: which are refused, which count, and which go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.backup.retention import NoSuchPointError, PointCatalog
from jetcluster.backup.run import AnotherAccountError
from jetcluster.backup.verify import check_point
from tests.unit.backup.accounts import FakeStream
from tests.unit.backup.site import Site, contents

pytestmark = pytest.mark.usefixtures("small_segments")


def test_an_account_that_lost_its_streams_makes_no_point() -> None:
    streams = [FakeStream(name) for name in "ABCD"]
    for one in streams:
        one.add(20)
    site = Site(*streams)
    good = [site.backup(keep=3) for _ in range(3)]
    for left in ((), streams[:1]):
        site.account.streams = {one.name: one for one in left}
        with pytest.raises(AnotherAccountError, match=f"{len(left)} of the 4 streams"):
            site.backup(keep=3)
    assert PointCatalog(site.storage).points() == good
    site.account.streams = {one.name: one for one in streams[:2]}
    for _ in range(4):
        site.check(site.backup(keep=3))
    points = PointCatalog(site.storage).points()
    assert [len(one.streams) for one in points] == [4, 2, 2, 2]  # the last one with C and D
    assert contents(site.storage, points[0], "C") == [streams[2].held[seq] for seq in range(1, 21)]
    site.account.streams.clear()
    assert site.backup(allow_empty=True).streams == ()


def test_streams_that_go_during_the_run_make_no_point_either() -> None:
    one, two = FakeStream("A"), FakeStream("B")
    one.add(5)
    two.add(5)
    site = Site(one, two)
    site.backup()
    one.add(1)
    site.account.meanwhile = lambda _: site.account.streams.clear()
    with pytest.raises(AnotherAccountError, match="0 of the 2"):
        site.backup()


def test_an_account_that_was_set_up_anew_makes_no_point_and_a_restored_one_does() -> None:
    stream, anew = FakeStream("S"), FakeStream("S", created="2026-11-02T00:00:00Z")
    stream.add(50)
    site = Site(stream)
    site.backup()
    site.account.streams["S"] = anew
    anew.add(10)
    with pytest.raises(AnotherAccountError, match="has 50 messages; there are 10"):
        site.backup()
    anew.add(40)
    site.check(site.backup())


def test_another_cluster_is_refused() -> None:
    stream = FakeStream("S")
    stream.add(5)
    site = Site(stream)
    site.account.cluster = "prod"
    site.backup()
    site.account.cluster = "staging"
    with pytest.raises(AnotherAccountError, match="staging"):
        site.backup()
    site.backup(allow_empty=True)
    site.backup()


def test_points_of_some_streams_are_kept_and_chosen_apart() -> None:
    one, two = FakeStream("A"), FakeStream("B")
    one.add(5)
    two.add(5)
    site = Site(one, two)
    whole = [site.backup(keep=2) for _ in range(2)]
    part = [site.backup("A", keep=2) for _ in range(3)]
    catalog = PointCatalog(site.storage)
    assert catalog.points() == [*whole, *part[1:]]
    assert catalog.newest() == whole[-1].name
    for point in whole:
        del site.storage.files[point.path]
    assert catalog.newest() == part[-1].name


def test_a_point_that_is_damaged_removes_no_other() -> None:
    """The destination damages what is written; what is verified before counts."""
    stream = FakeStream("S")
    stream.add(50)
    site = Site(stream)
    good = site.backup(keep=1, verify=True)
    assert good.verified is True
    real = site.storage.write

    def damaging(path: str, data: bytes) -> None:
        real(path, data[:-1] + bytes([data[-1] ^ 1]) if path.startswith("blobs/") else data)

    site.storage.write = damaging  # type: ignore[method-assign]
    stream.add(50)
    bad = site.backup(keep=1, verify=True)
    site.storage.write = real  # type: ignore[method-assign]
    catalog = PointCatalog(site.storage)
    assert bad.verified is False
    assert catalog.points() == [good, bad]
    assert catalog.newest() == good.name
    assert check_point(site.storage, good, site.said.append) == []
    unseen = site.backup(keep=1)
    assert catalog.names()[-1] == unseen.name


def test_points_that_nobody_verified_do_not_count_for_a_run_that_verifies() -> None:
    stream = FakeStream("S")
    stream.add(5)
    site = Site(stream)
    first = site.backup(verify=True)
    for _ in range(2):
        site.backup()
    last = site.backup(keep=2, verify=True)
    names = PointCatalog(site.storage).names()
    assert names[0] == first.name and names[-1] == last.name and len(names) == 4
    site.backup(keep=2, verify=True)
    assert len(PointCatalog(site.storage).names()) == 2


def test_points_that_are_named_by_a_time_are_whole_and_not_damaged() -> None:
    site = Site(FakeStream("S"), FakeStream("T"))
    first, part, damaged = site.backup(), site.backup("S"), site.backup()
    site.storage.files[damaged.path] = replace(damaged, verified=False).to_json()
    catalog = PointCatalog(site.storage)
    assert catalog.named("2100-01-01T00:00") == first.name == catalog.newest()
    assert [catalog.named(one.name) for one in (first, part, damaged)] == [first.name, part.name, damaged.name]
    for wanted, why in (
        ("yesterday", "is no point"),
        ("20260102T000000Z", "is no point"),
        ("2001-01-01T00:00", "earl"),
    ):
        with pytest.raises(NoSuchPointError, match=f"{why}.*{first.name}, {part.name}, {damaged.name}"):
            catalog.named(wanted)
    site.storage.files.clear()
    with pytest.raises(NoSuchPointError, match="there are: none"):
        catalog.named("2100-01-01T00:00")
