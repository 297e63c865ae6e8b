"""The command line: `jetcluster serve`, the offline tools and their options.

Here: parsing of flags and printing. Not here: anything a running server needs.
"""
