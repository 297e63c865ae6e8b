"""The stream's state machine; no I/O.

Here: publish rules, limits, TTL, schedules, counters, batches, rollups, deletes, Direct Get. Promise: the same commands
give the same state on every replica, also malformed ones; no command raises out of apply.
"""
