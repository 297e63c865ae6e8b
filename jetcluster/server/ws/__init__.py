"""WebSocket: the port for clients that come by it, and frames under a connection.

Here: the port and its clients (`port`), the transport that speaks WebSocket below a client (`transport`). Not here:
the handshake and the frames without I/O (`protocol.websocket`). Promise: above the
transport a client is served as any other one. Imported only where such a port is configured.
"""
