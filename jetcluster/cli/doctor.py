"""`jetcluster doctor`: what is wrong with the cluster, and with this machine and a configuration file, worst first."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from jetcluster.auth.authenticator import Authenticator
from jetcluster.cli.common import DONE, NOT_REACHED, connected, fail
from jetcluster.cli.machine import Machine
from jetcluster.cli.status_view import printable
from jetcluster.client.connection import Connection
from jetcluster.client.reply import NoRespondersError, ServerError
from jetcluster.client.servers import ServerOptions
from jetcluster.client.survey import no_system_user, whoami
from jetcluster.config.lexer import ConfigError
from jetcluster.doctor.catalogue import KINDS
from jetcluster.doctor.config_rules import look_at_config
from jetcluster.doctor.finding import Severity
from jetcluster.doctor.machine_rules import look_at_machine
from jetcluster.doctor.report import Collector, Report, merged
from jetcluster.monitor.facts import config_facts

BAD: Final = 1
"""Exit code when something is bad."""
MORE_SECONDS: Final = 5.0
"""The asked server waits for the others: so much longer than a usual answer it may take."""
MAX_COLUMNS: Final = 100
SHOWN: Final = 5
"""Findings of one code that are shown without --all."""
TITLES: Final = {kind.code: kind.seen for kind in KINDS}


def run_doctor(servers: ServerOptions, config: Path | None, *, offline: bool, as_json: bool, everything: bool) -> int:
    """Asks the cluster unless `offline`, and looks at this machine with `config`. Returns 0 when nothing is bad, 1 when
    something is, 2 when the cluster cannot be asked."""
    own = _machine(config, Machine()) if config is not None else None
    if offline:
        if own is None:
            return fail("doctor", "--offline looks at this machine: name the configuration file with --config", 2)
        return _show([own], [], [], as_json, everything)
    answered: list[dict[str, Any]] = []

    def work(connection: Connection) -> int:
        answered.append(_asked(connection, servers.connect_timeout))
        return DONE

    code = connected("doctor", servers, work)
    if code != DONE:
        if own is not None:
            _show([own], [], [], as_json, everything)
        return NOT_REACHED
    try:
        told = Report.from_dict(answered[0])
    except (LookupError, TypeError, AttributeError):
        return fail("doctor", "the server's answer cannot be read: it may be of another version", NOT_REACHED)
    reports = [told] if own is None else [told, own]
    return _show(
        reports, answered[0]["servers"], answered[0].get("unanswered", []), as_json, everything, machine=own is not None
    )


def _asked(connection: Connection, within: float) -> dict[str, Any]:
    """Returns the findings of the whole cluster from the server of this connection. Raises JetclusterError."""
    subject = f"$SYS.REQ.SERVER.{connection.info.get('server_id', '')}.FINDINGS"
    try:
        answer = connection.request(subject, b'{"cluster": true}', timeout=within + MORE_SECONDS).json()
    except NoRespondersError:
        raise ServerError(_why_nobody(connection)) from None
    except ServerError as error:
        raise ServerError(no_system_user(None, str(error))) from error
    if "error" in answer:
        raise ServerError(str(answer["error"].get("description", "the server does not say why")))
    found: dict[str, Any] = answer["data"]
    return found


def _why_nobody(connection: Connection) -> str:
    try:
        connection.request("$SYS.REQ.SERVER.PING.IDZ", timeout=2.0)
    except (NoRespondersError, ServerError):
        return no_system_user(whoami(connection))
    return f"{connection.server_name or 'the server'} does not know this request: it is older, or another program"


def _machine(config: Path, machine: Machine) -> Report:
    facts, options = machine.facts(str(config))
    found = Collector()
    found.add(look_at_machine(facts))
    if options is not None:
        try:
            login = Authenticator(options).required
        except ConfigError:  # it is told already
            login = True
        found.add(look_at_config(facts.server, config_facts(options, login=login)))
    return found.report()


def _show(
    reports: list[Report],
    servers: list[str],
    unanswered: list[str],
    as_json: bool,
    everything: bool,
    *,
    machine: bool = True,
) -> int:
    report = merged([("", one) for one in reports])
    if as_json:
        told = {"servers": servers, "unanswered": unanswered, "machine": machine}
        print(json.dumps({**told, **report.to_dict()}, ensure_ascii=False))
    else:
        columns = min(shutil.get_terminal_size((80, 24)).columns, MAX_COLUMNS)
        for line in lines(report, columns, everything=everything):
            print(printable(line))
        print(printable(summary(report, servers, machine=machine)))
    return BAD if report.worst == Severity.BAD else DONE


def lines(report: Report, columns: int, *, everything: bool) -> Iterator[str]:
    """Yields the findings for people, worst first, those of one code together."""
    for (severity, code), group in groupby(report.findings, lambda one: (one.severity, one.code)):
        found = list(group)
        shown = found if everything else found[:SHOWN]
        yield from _wrapped(f"{severity:4}  {code}  ", TITLES.get(code, found[0].what), columns)
        for place, one in enumerate(shown):
            yield from _wrapped("  - ", one.what, columns)
            again = place + 1 < len(shown) and shown[place + 1].why == one.why  # then it stands below the next
            if not again:
                yield from _wrapped("    ", one.why, columns)
        more = len(found) - len(shown) + report.left_out.get(code, 0)
        if more:
            yield f"  - and {more} more" + ("" if everything else " (--all, or --json)")
        yield from _wrapped("  > ", f"{found[0].remedy}. (docs/{found[0].page})", columns)
        yield ""


def _wrapped(begin: str, text: str, columns: int) -> list[str]:
    return textwrap.wrap(
        text, max(columns, 40), initial_indent=begin, subsequent_indent=" " * len(begin), break_on_hyphens=False
    )


def summary(report: Report, servers: list[str], *, machine: bool) -> str:
    """Returns the last line: how many there are, and who was looked at."""
    counts = report.counts()
    looked = [*([f"{len(servers)} servers"] if servers else []), *(["this machine"] if machine else [])]
    if not report.findings:
        return f"Nothing is wrong. Looked at: {', '.join(looked)}"
    words = [f"{counts['bad']} bad", f"{counts['warn']} warnings", f"{counts['note']} notes"]
    return f"{', '.join(words)}. Looked at: {', '.join(looked)}"
