"""The HTTP monitoring endpoints, the `$SYS` services and the metrics.

Here: readers of the state of the other rooms. Promise: nothing here changes anything; an answer is made in slices.
"""
