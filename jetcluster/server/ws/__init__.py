"""WebSocket clients: their port, and the transport below their connections.

Here: the port and its clients (`port`), the transport that speaks WebSocket (`transport`). Not here: the handshake and
the frames without I/O (`protocol.websocket`). Promise: above the transport, clients are served like any other. Imported
only if such a port is configured.
"""
