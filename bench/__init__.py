"""Load on any NATS-compatible server, for the pages of figures, and the asyncio client that the tests use too.

`loads` (publish, Direct Get, core, create), `batches` and `fast` (atomic and fast batches), `reads` (replies of many
messages) and `consumers` (fetch, ordered, key-value, idle durables) each run for a time or a count and return a
`Result`. Not in the wheel: what a user has is `jetcluster bench`, whose figures have the same form
(`jetcluster/cli/bench_result.py`). `scripts/bench*.py` put the loads together and write the pages.
"""
