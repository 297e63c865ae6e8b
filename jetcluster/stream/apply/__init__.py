"""The state machine of a stream: what each command of the log does, on every replica alike.

Here: the machine and its parts: checks of what is published, limits and age, batches, schedules, counters, jobs. Not
here: bytes of commands (`log`), what only a leader does (`lead`), and answers to readers (`read`).

Promise: apply reads no clock, no randomness and no configuration of a server (an import contract), and raises for no
input.
"""
