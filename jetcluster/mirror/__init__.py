"""The state machines of mirrors and sources, without I/O: their consumers on upstreams, messages under way, and pace.

`replica/mirror_host.py` runs them. Each message of an upstream is stored once and in order.
"""
