"""A whole node: the object that `serve` builds from the options, its start, its stop and its reload.

Here: which part gets which. Not here: what a part does. Promise: "Server is ready" is logged when requests are served.
"""
