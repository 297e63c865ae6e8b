"""The replicated state of a stream's consumers, which apply changes on every replica.

Here: rules, the log format of a turn, the effects of its ops, the table of all consumers, retention, archives. Not
here: decisions of an owner before they are in the log (`consumer.owner`). Promise: the log decides everything, without
clock, randomness or the node's configuration (an import contract): replicas at one index hold the same state and rows.
"""
