"""The synchronous NATS client of commands, Spark and jobs: a connection, credentials and TLS, replies, and the
questions to a stream's leader that they share.

Nothing is imported here: executors import only the module they need. A server uses none of it.
"""
