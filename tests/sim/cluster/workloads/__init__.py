"""Workloads of the simulation, one kind per module (`tests.sim.cluster.workload`)."""
