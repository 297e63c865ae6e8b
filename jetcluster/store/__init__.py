"""The message store of a stream: blocks, subject indexes, and the key-value store under them.

Promise: a write survives a crash once the next flush has ended. Checksums find damage, which is raised as
`DamagedError` and never returned as data.
"""
