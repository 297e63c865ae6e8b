"""Findings: what is wrong with a server, its cluster, streams, consumers, configuration and machine, and what to do.

`catalogue` has the kinds of findings, each with a code that never changes its meaning; docs/findings.md lists them.
`facts` are plain records of what was seen, and the rules turn facts into findings: `server_rules`, `cluster_rules`,
`stream_rules`, `consumer_rules`, `config_rules`, `machine_rules`. `report` puts findings of several servers together.

Pure: no rule reads a clock, a file or a socket. `monitor.facts` makes the facts of a running server, the command
`doctor` those of a machine. The console shows what the servers answer, so it has no rules of its own.
"""
