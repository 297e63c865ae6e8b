"""Consumers of a stream: replicated state, delivery, acks. Pure: no asyncio, no I/O (docs/consumers.md)."""
