"""Streams as Arrow record batches: every message of a range, or an error. Spark's source is built on it.

`options`, `planner` and `resolve` say what to read, `fetch` and `frames` read it from replicas that may lag,
`read_task` and `convert` make record batches of it. Executors import only the module they need, and nothing here.
"""
