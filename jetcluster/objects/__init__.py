"""The object service of the specification on `$OBJ.<bucket>`. Pure: no asyncio, no I/O (docs/objects.md)."""
