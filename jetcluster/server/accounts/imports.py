"""The setup of mappings, stream imports and service imports in the routers of accounts, at the start and at reloads.

Mappings and imports are takers in an account's index, found by the same lookup as all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from jetcluster.config.account_options import AccountOptions, MappingOptions
from jetcluster.config.import_rules import Imports, ServiceImport, Settled, SubjectMapping, settle
from jetcluster.logs import get_logger
from jetcluster.server.accounts.accounts import Accounts
from jetcluster.server.accounts.import_context import ImportContext
from jetcluster.server.accounts.leaf_delivery import deliver_mapped
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.service_imports import Responses, ServiceEntry
from jetcluster.server.accounts.shared_routes import Exporter, MappedSubject, Shadows, SharedRoute

log = get_logger("server")


class Sharing:
    """The sharing between the accounts of one server. Each call of `apply` changes only accounts that differ."""

    def __init__(self, accounts: Accounts, context: ImportContext) -> None:
        self._accounts = accounts
        self._context = context
        self.responses = Responses(context)
        self._entries: dict[str, list[ServiceEntry]] = {}
        self._mapped: dict[str, list[MappedSubject]] = {}
        self._of: dict[str, tuple[Any, ...]] = {}
        """The applied options of each account."""
        self.settled = Settled()
        self._told: set[tuple[str, str]] = set()
        """Problems already logged, as (account, text)."""
        self.mappings: dict[str, list[MappingOptions]] = {}

    def apply(
        self, accounts: Mapping[str, AccountOptions], of_global: list[MappingOptions], *, operator: bool = False
    ) -> None:
        """Applies the options of all accounts. `of_global`: mappings of `$G`. `operator`: accounts come from JWTs, so
        the system account has its usual exports, and an invalid import is logged and left out."""
        self.settled = settle(accounts, self._context.system_account if operator else "")
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
                self._apply_to(self._accounts[name], imports, mappings)
                self._of[name] = wanted

    def _apply_to(self, router: Router, imports: Imports, mappings: list[MappingOptions]) -> None:
        name, routers = router.account, self._accounts
        for mapped in self._mapped.pop(name, ()):
            router.remove_passage(mapped, announced=False, to_leaves=True)
        for entry in self._entries.pop(name, ()):
            router.remove_passage(entry, announced=False, to_leaves=True)
        if router.shadows is not None:
            router.shadows.clear()
            router.shadows = None
        if mappings:
            router.use_routes(SharedRoute)
        for order, options in enumerate(mappings):
            mapping = SubjectMapping(options, name)
            deliver = partial(deliver_mapped, router)
            mapped = MappedSubject(mapping, self._context.cluster, order, router.rng, router.route_of, deliver)
            self._mapped.setdefault(name, []).append(mapped)
            router.add_passage(mapped, announced=False, to_leaves=True)
        for imported in imports.services:
            self._add_service(router, imported)
        if imports.streams:
            for stream in imports.streams:
                routers[stream.account].use_routes(SharedRoute)
            exporters = [(stream, _exporter(routers[stream.account])) for stream in imports.streams]
            router.shadows = Shadows(name, router.index, exporters)

    def _add_service(self, router: Router, imported: ServiceImport) -> None:
        entry = ServiceEntry(self._context, self.responses, imported, router, self._accounts[imported.account])
        self._entries.setdefault(router.account, []).append(entry)
        router.add_passage(entry, announced=False, to_leaves=True)


def _exporter(router: Router) -> Exporter:
    return Exporter(router.add_passage, router.remove_passage)


def _signature(imports: Imports, mappings: list[MappingOptions]) -> tuple[Any, ...]:
    services = [(service.options, service.export) for service in imports.services]
    return ([stream.options for stream in imports.streams], services, mappings)
