"""The configuration: nats-server's file format and flags, and the options that they fill.

Here: the parser, the table of keys (`keys`), the readers of blocks, and the checks. Promise: an error names the file,
the line and the column; a key that the server does not support is refused by its name.
"""
