"""Signed configuration: the JWTs of operators, accounts and users."""
