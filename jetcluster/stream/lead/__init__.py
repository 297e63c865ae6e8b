"""The work of a stream's leader: collecting messages into commands, staging batches, answering publishers, and duties.

The decision whether a message is stored is made in `apply`. No message is acknowledged before it is applied, which
means committed and durable on a majority.
"""
