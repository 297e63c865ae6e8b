"""The configuration: nats-server's file format and flags, and the options that they fill.

Here: the parser, one file per block, and the checks. Promise: bad input is answered with a file, a line and a position;
what the server does not support is refused by its name.
"""
