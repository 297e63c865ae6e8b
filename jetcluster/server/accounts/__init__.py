"""Accounts: the router of each, and what accounts share.

Here: who takes a subject (`subscription`), compiled into routes (`route`); the router that delivers (`router`,
`bulk`); what other nodes and leaf links want (`remote_peers`) and what this node does (`local_interest`); mappings,
stream and service imports (`imports`). Not here: connections, whose ends are `Sink`s; permissions of a user
(`server.permissions`). Promise: subjects of one account never meet those of another but by an import, and an
account that shares nothing pays nothing for it.
"""
