"""The probe of a data store's disk asks the disk that the store is on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from jetcluster.store.disk_probe import probe
from testkit.twins.storage import SimDisk
from testkit.twins.time import SeededRng


def test_a_disk_that_is_well_keeps_the_file_and_loses_it_again(tmp_path: Path) -> None:
    probe(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_the_disk_that_was_given_is_asked(operation: str) -> None:
    disk = SimDisk(SeededRng(1))
    folder = Path("/data")
    disk.files.mkdir(folder)
    probe(folder, disk.files)
    assert disk.files.listdir(folder) == []
    fault = disk.fail(operation, errno.EIO, within="/data/")
    with pytest.raises(OSError, match="Input/output error"):
        probe(folder, disk.files)
    disk.heal(fault)
    probe(folder, disk.files)
