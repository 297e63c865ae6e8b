"""The consumers of a stream: their replicated state (`state`) and the work of their owners (`owner`); no I/O.

Here, besides: the assignment of owners (`owners`) and ConsumerInfo (`info`). Not here: the owners on a replica and
their messages to other nodes (`replica/consumer_host.py`). Promise: all that is confirmed to a client is in the
stream's log, and replicas at the same index hold the same state.
"""
