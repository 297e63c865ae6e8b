"""Leaf links: connections between this server and leaf nodes, or hubs.

Here: the port and the dialling (`nodes`), the handshake (`handshake`), what a link brings (`input`) and what its
ends want of each other (`link`), who may log in and what may cross (`rules`). Not here: the protocol
without I/O (`protocol.leaf`), and the choice of takers for what a link brings (`accounts.leaf_delivery`). Promise:
a message crosses a link once, and never returns to the side it came from.
"""
