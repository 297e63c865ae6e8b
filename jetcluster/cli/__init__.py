"""The command line: `jetcluster serve`, the other commands and their options. A running server needs none of it."""
