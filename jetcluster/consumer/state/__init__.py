"""The replicated state of a stream's consumers: what apply runs, on every replica.

Here: rules, the log format of a turn, what its ops do to a consumer, the table of all consumers, retention, archives.
Not here: who owns a consumer, and what an owner decides before it is in the log (`consumer.owner`). Promise: everything
follows from the log: no clock, no randomness, no configuration of the node (an import contract); replicas at the same
index hold the same state and rows.
"""
