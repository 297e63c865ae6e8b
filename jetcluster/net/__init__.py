"""Listening sockets and TLS, for every room that opens a port.

Promise: an error of opening a port names its address; a bad certificate file does not replace a good one.
"""
