"""The message store of a stream: blocks, indexes of subjects, the key-value store under them.

Promise: what a call acknowledged is there after a crash once the next flush is through; damage is found by checksums
and told as `DamagedError`, never returned as data.
"""
