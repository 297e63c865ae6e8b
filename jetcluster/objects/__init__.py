"""The objects of a bucket: chunks, manifests, claims and their deletion as part of a stream's log; no I/O.

Promise: an object is whole or not there; chunks that no manifest names go.
"""
