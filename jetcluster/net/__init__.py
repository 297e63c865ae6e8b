"""Listening sockets and TLS, for every room that opens a port.

Promise: a port that cannot be opened is told by its address; a bad certificate file does not replace a good one.
"""
