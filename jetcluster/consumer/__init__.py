"""The consumer's state machine and what its owner does with it; no I/O.

Here: acks, pending deliveries, redelivery, pull and push, filters, owners, the operation log and the timers of owners.
Not here: who owns what in a cluster (`replica/consumer_host.py`). Promise: what is confirmed to a client is in the
stream's log, and replicas at the same index hold the same state.
"""
