"""The setting up of what accounts share: mappings, stream imports and service imports are put into their routers, again
at each reload.

Nothing here is on the way of a message but what an account has asked for: mappings and imports are takers in its index,
so they are found by the lookup that finds all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jetcluster.clock import Clock, Rng, Timers
from jetcluster.config.account_options import AccountOptions
from jetcluster.config.import_rules import Imports, ServiceImport, Settled, settle
from jetcluster.config.mapping_rules import Mapping as SubjectMapping
from jetcluster.config.sharing import MappingOptions
from jetcluster.logs import get_logger
from jetcluster.protocol.bus import Origin
from jetcluster.server.router import Router
from jetcluster.server.service_imports import Replies, ServiceEntry, describe
from jetcluster.server.shared_route import MappedSubject, SharedRoute
from jetcluster.server.stream_imports import Shadows

if TYPE_CHECKING:
    from jetcluster.server.server import Server

log = get_logger("server")

Link = tuple[tuple[str, str], dict[str, Any] | None, bool]
"""(account and subject of an export, who asked, whether that is shared in full) of a service import under way; of a
response it is not said who asked."""


class Around:
    """The parts that the imports of all accounts share."""

    def __init__(self, server: Server, system_account: str) -> None:
        self.clock: Clock = server.clock
        self.timers: Timers = server.timers
        self.rng: Rng = server.rng
        self.server_name = server.name
        self.cluster = server.options.cluster_name
        self.system_account = system_account
        self.way: tuple[Origin | None, tuple[Link, ...]] = None, ()
        """Whose message is being routed now, and the service imports that it has come through. What a callback
        publishes meanwhile has another origin, and its own way."""
        self._replies: dict[str, Replies] = {}

    def replies_of(self, router: Router) -> Replies:
        found = self._replies.get(router.account)
        if found is None:
            found = self._replies[router.account] = router.replies = Replies(self, router)
            router.add_passage(found, told=True)
        return found

    def chain_of(self, origin: Origin) -> tuple[Link, ...]:
        return self.way[1] if self.way[0] is origin else ()

    def responder(self, origin: Origin) -> dict[str, Any]:
        """The client that answered; {} when that is not a client of this node."""
        return describe(origin, share=True) if hasattr(origin, "client_info") else {}

    def tell(self, router: Router, subject: bytes, kind: str, fields: dict[str, Any]) -> None:
        from jetcluster.model.advisory import Advisories, Event

        router.publish(subject, Advisories(self.clock, self.rng).render(Event(subject, kind, fields)))


def share(
    server: Server,
    accounts: Mapping[str, AccountOptions],
    of_global: list[MappingOptions],
    system_account: str,
    *,
    operator: bool = False,
) -> None:
    """Makes this what the accounts of a server share: see `Sharing.apply`."""
    if server.accounts.sharing is None:
        server.accounts.sharing = Sharing(server, system_account)
    server.accounts.sharing.apply(accounts, of_global, operator=operator)


class Sharing:
    """The sharing between the accounts of one server. `apply` may be called again and again; what did not change is
    left alone."""

    def __init__(self, server: Server, system_account: str) -> None:
        self._server = server
        self._around = Around(server, system_account)
        self._entries: dict[str, list[ServiceEntry]] = {}
        self._mapped: dict[str, list[MappedSubject]] = {}
        self._of: dict[str, tuple[Any, ...]] = {}
        """The options of each account, as they were applied."""
        self.settled = Settled()
        self._told: set[tuple[str, str]] = set()
        """Problems that the log has."""
        self.mappings: dict[str, list[MappingOptions]] = {}

    def apply(
        self, accounts: Mapping[str, AccountOptions], of_global: list[MappingOptions], *, operator: bool = False
    ) -> None:
        """`of_global`: mappings of `$G`. `operator`: accounts come from JWTs, so that the system account exports what
        it does there, and an import that cannot stand is left out and told in the log."""
        around = self._around
        self.settled = settle(accounts, around.system_account if operator else "")
        for account, problem in self.settled.problems:
            if (account, problem) not in self._told:
                log.warning(f"account {account}: {problem}")
        self._told = set(self.settled.problems)
        self.mappings = {name: account.mappings for name, account in accounts.items() if account.mappings}
        if of_global:
            self.mappings["$G"] = of_global
        names = {*self._of, *self.settled.imports, *self.mappings}
        for name in sorted(names):
            imports = self.settled.imports.get(name, Imports())
            mappings = self.mappings.get(name, [])
            wanted = _signature(imports, mappings)
            if self._of.get(name) != wanted:
                self._apply_to(self._server.accounts[name], imports, mappings)
                self._of[name] = wanted

    def _apply_to(self, router: Router, imports: Imports, mappings: list[MappingOptions]) -> None:
        name, routers = router.account, self._server.accounts
        for mapped in self._mapped.pop(name, ()):
            router.remove_passage(mapped, told=False, to_leaves=True)
        for entry in self._entries.pop(name, ()):
            router.remove_passage(entry, told=False, to_leaves=True)
        if router.shadows is not None:
            router.shadows.clear()
            router.shadows = None
        if mappings:
            router.use_routes(SharedRoute)
        for order, options in enumerate(mappings):
            mapped = MappedSubject(router, SubjectMapping(options), self._around.cluster, order)
            self._mapped.setdefault(name, []).append(mapped)
            router.add_passage(mapped, told=False, to_leaves=True)
        for imported in imports.services:
            self._add_service(router, imported)
        if imports.streams:
            for stream in imports.streams:
                routers[stream.account].use_routes(SharedRoute)
            router.shadows = Shadows(router, [(stream, routers[stream.account]) for stream in imports.streams])

    def _add_service(self, router: Router, imported: ServiceImport) -> None:
        entry = ServiceEntry(self._around, imported, router, self._server.accounts[imported.account])
        self._entries.setdefault(router.account, []).append(entry)
        router.add_passage(entry, told=False, to_leaves=True)


def _signature(imports: Imports, mappings: list[MappingOptions]) -> tuple[Any, ...]:
    services = [(service.options, service.export) for service in imports.services]
    return ([stream.options for stream in imports.streams], services, mappings)
