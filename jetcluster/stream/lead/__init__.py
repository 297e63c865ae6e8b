"""The part of a stream's leader: messages on their way into the log, answers to publishers, and duties.

Here: messages of a turn become a command, batches are staged, what is due is proposed. Not here: what is decided about
them (`apply`).

Promise: nothing is acknowledged before it is applied, which means committed and durable on a majority.
"""
