"""Answers to readers, from what a replica has stored: Direct Get, MSG.GET, and the state of a stream.

Here: requests are understood and answered. Not here: when a replica may answer (`replica.reads`).

Promise: reading changes nothing.
"""
