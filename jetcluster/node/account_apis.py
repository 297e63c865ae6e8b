"""The JetStream API of a node's accounts; on a clustered node without JetStream, its relay to a node that has it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jetcluster.config.options import Options
from jetcluster.logs import Logger
from jetcluster.mesh.core import MeshCore
from jetcluster.model.limits import AccountLimits
from jetcluster.node.platform import Platform
from jetcluster.server.server import Server

if TYPE_CHECKING:
    from jetcluster.api.dispatch import JetStreamApi
    from jetcluster.api.relay import ApiRelay
    from jetcluster.api.request import ApiContext
    from jetcluster.api.spool import Spool
    from jetcluster.cluster.jetstream import JetStream

DEFAULT_ACCOUNT = "$G"


class AccountApis:
    """Starts and stops the API of each account. `start` or `start_relay` comes first."""

    def __init__(self, options: Options, server: Server, platform: Platform, log: Logger) -> None:
        """`options` is the object that a reload changes in place."""
        self._options = options
        self._server = server
        self._platform = platform
        self._rng = platform.rng
        self._log = log
        self.enabled: dict[str, JetStreamApi] = {}
        """The APIs of the accounts where JetStream is enabled."""
        self._all: dict[str, JetStreamApi] = {}
        self._context: ApiContext | None = None
        self._relay: ApiRelay | None = None

    def start(
        self,
        directory: Path,
        jetstream: JetStream,
        mesh: MeshCore,
        limits: Callable[[str], AccountLimits],
        own_limits: Callable[[str], AccountLimits],
    ) -> None:
        """`directory` is the store's. `limits` returns an account's limits in the cluster, `own_limits` its configured
        ones."""
        from jetcluster.api.request import ApiContext

        options, server = self._options, self._server
        self._context = ApiContext(
            cluster=jetstream,
            clock=jetstream.runtime.clock,
            rng=self._rng,
            log=self._log,
            server_name=server.name,
            budget=server.budget,
            domain=options.domain,
            limits=limits,
            own_limits=own_limits,
            strict=options.jetstream.strict,
            compat=options.compat,
            spool=partial(self._spool, directory),
            spool_bytes=lambda: jetstream.services.settings.account_quota.file_room,
            advise=partial(jetstream.services.events.tell, options.system_account_name),
        )
        self._serve(self._context)
        if options.is_clustered:
            from jetcluster.api.relay import serve_relayed

            serve_relayed(
                mesh,
                server.accounts.known,
                mesh.members.is_member,
                domain=options.domain,
                system_account=options.system_account_name,
            )

    def _spool(self, directory: Path) -> Spool:
        from jetcluster.api.spool import Spool

        return Spool(directory, self._platform.files, self._rng)

    def start_relay(self, mesh: MeshCore) -> None:
        from jetcluster.api.relay import ApiRelay

        options, server = self._options, self._server
        self._relay = ApiRelay(
            mesh,
            server.account,
            self._rng,
            domain=options.domain,
            system_account=options.system_account_name,
            elsewhere=lambda account, subject: server.account(account).imports_service(subject),
        )
        self._relay.serve(self._known())

    def reconfigure(self, changed: list[str]) -> None:
        """Takes over options that a reload, or a change of accounts, has changed."""
        if self._context is not None:
            self._context.compat = self._options.compat
        if "accounts" not in changed:
            return
        if self._context is not None:
            self._serve(self._context)
        if self._relay is not None:
            self._relay.serve(self._known())

    async def stop(self) -> None:
        for api in self._all.values():
            await api.stop()

    def _known(self) -> set[str]:
        return {DEFAULT_ACCOUNT, self._options.system_account_name, *(self._options.accounts or ())}

    def _serve(self, context: ApiContext) -> None:
        """Serves the API of each account; for one without JetStream it answers 10039."""
        from jetcluster.api.dispatch import MAX_QUEUED, JetStreamApi

        enabled = self._with_jetstream()
        for account in sorted(self._known() | self._all.keys()):
            api = self._all.get(account)
            if api is None:
                options, router = self._options, self._server.account(account)
                limit = options.jetstream.request_queue_limit
                api = self._all[account] = JetStreamApi(
                    context,
                    router,
                    system=account == options.system_account_name,
                    max_queued=limit if limit > 0 else MAX_QUEUED,
                    answers_elsewhere=router.imports_service,
                )
                api.start()
            api.enabled = account in enabled
        self.enabled = {account: self._all[account] for account in enabled}

    def _with_jetstream(self) -> list[str]:
        known = dict.fromkeys((DEFAULT_ACCOUNT, *(self._options.accounts or ())))
        return [name for name in known if self._options.has_jetstream(name)]
