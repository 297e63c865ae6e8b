"""Encryption at rest: the keys of a store (`keyring`), and what is sealed with them.

`segments` seals the journal's records, `values` the data store's values, `names` the names in its keys. What is sealed
and why so, is in docs/security/encryption.md. Only `keyring` reads or writes a file. A server without a key imports
`api`, the types, and nothing else of it.
"""
