"""The way of a message: which functions of `jetcluster` run between a client's request and its answer, counted.

`python -m tests.path` prints each way, `--write` makes docs/way-of-a-message.md of them, `test_ways` fails where one is
longer than `ways.WAYS` allows. In here: the counter, the requests, the page. Not in here: time (bench/page.py).
"""
