"""Every alert rule in a real Prometheus: a fault of a real cluster makes it fire, and it is quiet before and after.
`python -m chaos.alerts --help`; docs/monitoring.md has the last run."""
