"""The NATS wire protocol; no I/O.

Here: the parser, headers, subjects, the subject tree, status lines. Promise: the same bytes in any portions give the
same events; what is taken is bounded before it is read.
"""
