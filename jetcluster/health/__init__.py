"""The health of one node: what it may promise, and the time that it tells.

`node_health.NodeHealth` is the one owner of the verdict: everything that leads, votes, vouches for reads or hands
deliveries out asks it, and the code that can see a part of the node (journal, data store, descriptors, clock, event
loop, memory) reports to it. `cluster_clock.ClusterClock` is the wall clock that everything stamps with: one clock that
is hours off removes nothing and stamps nothing.

Not here: what is done about a verdict (raft hands leaderships over, replicas leave the reads, monitoring tells).
"""
