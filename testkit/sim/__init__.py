"""Whole nodes in one process, on a loop, a network and disks of the simulation: the same seed gives the same run. Which
loads and faults a run has, and what it promises, is in tests/sim/cluster."""
