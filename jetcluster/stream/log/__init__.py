"""The commands of a stream's log: their bytes, and the levels of versions that understand them.

Here: what a command is, encoded and decoded. Not here: what it does (`apply`), and who proposes it (`lead`).

Promise: a log is always replayed as it was applied. A number is never used for anything else.
"""
