"""One node's part in the cluster's control plane.

Here: the meta group's replica and service, the registry of nodes, administration, requests to leaders, and the upkeep
of all replicas of a node (flushing, scrubbing, orphans, rescue). Not here: one stream's replica (`replica`), the meta
group's state machine (`meta`), links between nodes (`mesh`). Promise: every change of the cluster goes through the meta
group's log; a repeated request is carried out once.
"""
