"""The state machines of mirrors and sources; no I/O.

Here: what was taken from where, the pace of it, and what is asked for next. Not here: the links that carry it
(`replica/mirror_host.py`). Promise: each message of an upstream is stored once and in order.
"""
