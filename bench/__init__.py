"""Load on any NATS-compatible server, for the pages of figures: `python -m bench` lists what there is.

`wire` and `window` are the client: blocking sockets, answers counted in bulk. `loads` (publish, Direct Get, core,
create), `batches` and `fast` (atomic and fast batches), `reads` (replies of many messages) and `consumers` (fetch,
ordered, key-value, idle durables) each run for a time or a count and return a `LoadResult`.

`groups` declares the rows of docs/benchmarks.md (`row`), each with the function that measures it on a `stand`; `turns`
runs them on all contenders, `samples` keeps what was measured, `report` writes the page, `profile` that of profiles.
`sizes` with `axes` and `plot` is docs/benchmarks/sizes.md, `scaling` is docs/benchmarks/scaling.md and reads.md.
`scenarios` has the figures of other pages; `counts` has loads in a simulation whose instructions CI counts. Not in the
wheel.
"""
