"""Clients: their connections, and the parts of a server that these use.

Here: login (`login`), commands (`commands`), the connected clients (`clients`), the port with TLS (`tls_port`). Not
here: the socket's I/O (`server.connection`) and the order in which connections are served (`server.fairness`).
Promise: an exception in the work for one client closes that client and nothing else.
"""
