"""Signed configuration: what the JWTs of operators, accounts and users say."""
