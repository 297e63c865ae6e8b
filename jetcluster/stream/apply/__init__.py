"""The state machine of a stream: the effect of each command of the log, the same on every replica.

The package has the machine and its parts: checks of published messages, limits and age, batches, schedules, counters,
jobs. The bytes of commands are in `log`, the leader's work in `lead`, and answers to readers in `read`.

Apply reads no clock, no randomness and no configuration of a server (an import contract), and raises for no input.
"""
