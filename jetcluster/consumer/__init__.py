"""The consumers of a stream: their replicated state (`state`) and what their owners do with it (`owner`); no I/O.

Here: besides the two, who owns a consumer (`owners`) and ConsumerInfo (`info`). Not here: the owners of a replica, and
what they tell other nodes (`replica/consumer_host.py`). Promise: what is confirmed to a client is in the stream's log,
and replicas at the same index hold the same state.
"""
