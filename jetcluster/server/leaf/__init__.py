"""Leaf links: connections between this server and leaf nodes, or hubs.

Here: the port and the dialling (`nodes`), the handshake (`handshake`), the input of a link (`input`), the interest that
its ends exchange (`link`), logins and the subjects that may cross (`rules`). Not here: the protocol without I/O
(`protocol.leaf`), and the choice of takers for a link's messages (`accounts.leaf_delivery`). Promise: a message crosses
a link once, and never returns to the side it came from.
"""
