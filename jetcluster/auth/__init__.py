"""Logins with users, nkeys, JWTs and operators, and the permissions of users.

Here: checks of credentials and claims. Not here: connections (`server`). Promise: the error of a failed check does not
give the client its reason, and a claim that cannot be read counts as no claim.
"""
