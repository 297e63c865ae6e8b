"""Client connections: TCP, TLS, WebSocket, leaf nodes, and the router between them.

Here: logins, subscriptions, accounts with imports and exports, limits of a connection. Not here: JetStream, which
subscribes like any other part (`api`). Promise: messages of one publisher on one subject keep their order; a slow
reader is closed and delays no other connection.

Bottom to top: the shared state (`state`), the I/O of a connection (`connection`) and the turns of connections
(`fairness`); the routers of accounts (`accounts`); clients, their logins and commands (`client`); the WebSocket port
(`ws`) and leaf links (`leaf`); `server.Server`.
"""
