"""Accounts: the router of each, and what accounts share.

Here: the takers of subjects (`subscription`), compiled into routes (`route`); the router that delivers (`router`,
`bulk`); the interest of other nodes and leaf links (`remote_peers`) and of this node (`local_interest`); mappings,
stream and service imports (`imports`). Not here: connections, which are `Sink`s; permissions of a user
(`server.permissions`). Promise: a message leaves its account only through an import, and accounts that share nothing
have no cost from sharing.
"""
