"""The stream's state machine, without I/O: publish rules, limits, TTL, schedules, counters, batches, rollups, deletes,
Direct Get. The same commands, even malformed ones, give the same state on every replica, and none raises out of apply.
"""
