"""The replicated state of a stream's consumers, which apply changes on every replica.

Here: rules, the log format of a turn, the effects of its ops, the table of all consumers, retention, archives. Not
here: decisions of an owner before they are in the log (`consumer.owner`). Promise: everything follows from the log,
without clock, randomness or configuration of the node (an import contract); replicas at the same index hold the same
state and rows.
"""
