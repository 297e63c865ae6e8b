"""Faults on purpose: workloads, nemeses, checkers of what was promised (docs/chaos.md). `python -m chaos --help`."""
