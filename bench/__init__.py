"""Load on any NATS-compatible server, for the pages of figures: `python -m bench` lists what there is.

`loads` (publish, Direct Get, core, create), `batches` and `fast` (atomic and fast batches), `reads` (replies of many
messages) and `consumers` (fetch, ordered, key-value, idle durables) each run for a time or a count and return a
`LoadResult`; `page` and `features` put them together for docs/benchmarks.md, which `report` writes. `scenarios` has the
figures of other pages; `counts` has loads in a simulation whose instructions CI counts. Not in the wheel.
"""
