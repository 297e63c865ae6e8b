"""The object service of a bucket: uploads, downloads and deletions as commands in its stream's log; no I/O.

Promise: an object is whole or absent, and the chunks of no object are removed.
"""
