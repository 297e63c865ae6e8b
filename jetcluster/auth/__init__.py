"""Logins: users, nkeys, JWTs and operators, and what a user may publish and subscribe to.

Here: checks of credentials and claims. Not here: connections (`server`). Promise: a check that fails tells the client
nothing of why, and a claim that cannot be read counts as no claim.
"""
