"""The commands of a stream's log: their bytes, and the levels of versions that understand them.

Their effects are in `apply`, their proposers in `lead`. A log is always replayed as it was applied: the number of a
command or flag is never used for another meaning.
"""
