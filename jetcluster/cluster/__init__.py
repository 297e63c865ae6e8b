"""One node's part in the cluster's control plane.

Here: the meta group's replica and service, the registry of nodes, administration, requests to leaders, and what keeps
all replicas of a node in order (flushing, scrubbing, orphans, rescue). Not here: one stream's replica (`replica`), the
meta group's state machine (`meta`), links between nodes (`mesh`). Promise: every change of the cluster goes through the
meta group's log; a request that is repeated is carried out once.
"""
