"""The links between the nodes of a cluster.

Here: the handshake and a node's identity, frames, lanes, requests between nodes, interest and valves of subjects. Not
here: the meaning of a group's frames (`raft`). Promise: frames keep their order within a lane of one link; a frame of a
group is accepted from its members only; what waits for a link is bounded.
"""
