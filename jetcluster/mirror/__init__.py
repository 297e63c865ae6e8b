"""Mirrors and sources: the links that bring an upstream's messages into a stream's log (pure; docs/architecture.md)."""
