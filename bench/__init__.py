"""Load on any NATS-compatible server, for the pages of figures, and the asyncio client that the tests use too.

`loads` (publish, Direct Get, core, create), `batches` and `fast` (atomic and fast batches), `reads` (replies of many
messages) and `consumers` (fetch, ordered, key-value, idle durables) each run for a time or a count and return a
`result.LoadResult`. Not in the wheel: users have `nats bench`, which loads any server. `scripts/bench*.py` put the
loads together and write the pages.
"""
