"""Answers to readers from a replica's store: Direct Get, MSG.GET, and the state of a stream.

`replica.reads` decides when a replica may answer. Reading changes nothing.
"""
