"""Client connections: TCP, TLS, WebSocket, leaf nodes, and the router between them.

Here: logins, subscriptions, accounts with imports and exports, limits of a connection. Not here: JetStream, which is a
subscriber like any other (`api`). Promise: messages of one publisher on one subject keep their order; a slow reader is
closed and holds nobody up.

From the bottom: the state that all parts go by (`state`) and the takers of messages (`subscription`, `route`); the
router of an account, above it what accounts share (`imports`); the connections of clients, their logins and commands;
their ports; `server.Server` on top, and beside it the leaf links (`leafnodes`).
"""
