"""The meta group's state machine; no I/O.

Here: the table of nodes, the table of streams and their replicas, placement, and the check that subjects do not
overlap. Not here: the group that replicates it (`cluster/meta_replica.py`). Promise: all nodes compute the same state
from the same log, and refuse the same commands.
"""
