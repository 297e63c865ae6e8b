"""Client connections: TCP, TLS, WebSocket, leaf nodes, and the router between them.

Here: logins, subscriptions, accounts with imports and exports, limits of a connection. Not here: JetStream, which is a
subscriber like any other (`api`). Promise: messages of one publisher on one subject keep their order; a slow reader is
closed and holds nobody up.

From the bottom: the state that all parts go by (`state`), the I/O of a connection (`connection`) and the turns that
connections take (`fairness`); the routers of accounts (`accounts`); the clients, their logins and commands (`client`);
their other port (`ws`) and leaf links (`leaf`); `server.Server` on top.
"""
