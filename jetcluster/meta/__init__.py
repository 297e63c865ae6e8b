"""The meta group's state machine; no I/O.

Here: which nodes there are, which streams and where their replicas are, placement, and subjects that may not overlap.
Not here: the group that replicates it (`cluster/meta_replica.py`). Promise: all nodes compute the same state from the
same log, and a command that cannot be carried out is refused alike by all.
"""
