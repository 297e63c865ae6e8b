"""Disk of a simulated machine: sectors that forget, the operating system's calls on its files, the journal's writer
and the data store's RocksDB over it."""

from testkit.twins.storage.rocksdict import RocksModule
from testkit.twins.storage.sim_disk import SimDisk
from testkit.twins.storage.sim_writer import SimWriter

__all__ = ["RocksModule", "SimDisk", "SimWriter"]
