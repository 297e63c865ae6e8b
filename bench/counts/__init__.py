"""Instructions of the servers per message of fixed loads, counted and not timed: `python -m bench counts`."""
