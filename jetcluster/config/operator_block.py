"""The top-level keys of operator mode: operators or trusted keys, and the resolver of accounts' JWTs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jetcluster.config.nkeys import is_key
from jetcluster.config.options import CACHE, FULL, MEMORY, URL, LeafRemoteOptions, Options, ResolverOptions
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    Convert,
    FieldError,
    Reader,
    as_bool,
    as_int,
    as_map,
    as_string,
    as_strings,
    parse_duration,
    texts_with_places,
    wrong_type,
)
from jetcluster.config.tls_block import read_link_tls

_MEMORY = re.compile(r"MEM", re.IGNORECASE)
_URL = re.compile(r'URL(?:\(\s*"?([^\s"]*?)"?\s*\))?', re.IGNORECASE)
_WRONG_RESOLVER = (
    'error parsing account resolver, should be MEM or  URL("url") or a map containing dir and type state=[FULL|CACHE])'
)
_KINDS = {"FULL": FULL, "CACHE": CACHE, "MEM": MEMORY, "MEMORY": MEMORY}


def read_operators(reader: Reader, node: ConfigNode, options: Options) -> None:
    from jetcluster.config.claims.operator import read_operator
    from jetcluster.config.claims.token import ClaimsError

    found = []
    for text in as_strings(reader, "operator", node):
        try:
            found.append(read_operator(text))
        except ClaimsError as error:
            reader.error(node, f"error parsing operator JWT: {error}")
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            reader.error(node, f"error parsing operator JWT: open {text}: {why}")
    options.operator.operators = found


def read_trusted_keys(_reader: Reader, node: ConfigNode, options: Options) -> None:
    found = texts_with_places("trusted_keys", node)
    for key, place in found:
        if not is_key("O", key):
            raise FieldError(f'trust key "{key}" required to be a valid public operator nkey', place)
    options.operator.trusted_keys = [key for key, _ in found]


def read_resolver(reader: Reader, node: ConfigNode, options: Options) -> None:
    value = node.value
    if isinstance(value, dict):
        options.operator.resolver = _directory(reader, node, value)
        return
    if not isinstance(value, str):
        raise wrong_type("resolver", node, "a string or a map")
    if _MEMORY.search(value):
        options.operator.resolver = ResolverOptions(MEMORY)
        return
    found = _URL.search(value)
    if found is None:
        raise FieldError(_WRONG_RESOLVER)
    url = found[1] or ""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise FieldError(f'error parsing account resolver url ["{url}"]')
    options.operator.resolver = ResolverOptions(URL, url=url if url.endswith("/") else f"{url}/")


def _directory(reader: Reader, node: ConfigNode, pairs: dict[str, ConfigNode]) -> ResolverOptions:
    """Reads a resolver block; unknown keys are ignored, as in nats-server."""

    def get(name: str, convert: Convert, zero: Any) -> Any:
        return convert(reader, name, pairs[name]) if name in pairs else zero

    def seconds(name: str) -> float:
        text = get(name, as_string, "")
        try:
            return parse_duration(text) if text else 0.0
        except ValueError as error:
            raise FieldError(str(error)) from error

    kind = _KINDS.get(get("type", as_string, "").upper())
    if kind is None:
        raise FieldError(_WRONG_RESOLVER)
    if kind == MEMORY:
        return ResolverOptions()
    found = ResolverOptions(kind, get("dir", as_string, ""), "", get("allow_delete", as_bool, False))
    found.hard_delete = get("hard_delete", as_bool, False)
    found.limit, found.ttl = get("limit", as_int, 0), seconds("ttl")
    interval, timeout = seconds("interval"), seconds("timeout")
    for problem in _problems(found, interval, timeout, pairs):
        reader.error(node, problem)
    if kind == CACHE and found.limit <= 0:
        found.limit = 1000
    found.interval, found.timeout = interval or found.interval, timeout or found.timeout
    return found


def _problems(found: ResolverOptions, interval: float, timeout: float, given: dict[str, ConfigNode]) -> list[str]:
    problems = []
    place = Path(found.directory)
    if not found.directory:
        problems.append("dir has no value and needs to point to a directory")
    elif place.exists() and not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        problems.append("dir needs to point to an accessible directory")
    if found.kind == CACHE:
        refused = {"sync": bool(interval), "allow_delete": found.allow_delete, "hard_delete": "hard_delete" in given}
        problems += [f"CACHE does not accept {name}" for name, is_given in refused.items() if is_given]
    else:
        if found.ttl:
            problems.append("FULL does not accept ttl")
        if "hard_delete" in given and not found.allow_delete:
            problems.append("hard_delete has no effect without delete")
    if "timeout" in given and timeout <= 0:
        problems.append(f"Fetch timeout {given['timeout'].value} is too smal")
    return problems


def read_preload(reader: Reader, node: ConfigNode, options: Options) -> None:
    from jetcluster.config.claims.account import decode_account
    from jetcluster.config.claims.token import ClaimsError

    options.operator.preload = {}
    for key, item in as_map(node, "resolver_preload").items():
        if item.used_as_variable:
            continue
        if not isinstance(item.value, str):
            reader.error(item, str(wrong_type("resolver_preload", item, "a string", element=True)))
            continue
        try:
            decode_account(item.value)
        except ClaimsError:
            reader.error(item, "invalid account JWT")
            continue
        options.operator.preload[key] = item.value


def read_pinned_accounts(_reader: Reader, node: ConfigNode, options: Options) -> None:
    found = texts_with_places("resolver_pinned_accounts", node)
    options.operator.pinned_accounts = [account for account, _ in found]


def read_sentinel(reader: Reader, node: ConfigNode, options: Options) -> None:
    options.operator.default_sentinel = as_string(reader, "default_sentinel", node)


def read_resolver_tls(reader: Reader, node: ConfigNode, options: Options) -> None:
    """Reads TLS of a connecting end, in the same way as a leafnode remote's."""
    remote = LeafRemoteOptions()
    read_link_tls(reader, node, remote)
    options.operator.resolver_tls = remote.tls


def settle_operator(options: Options) -> None:
    """Takes the system account and the resolver from the operator's JWT where the configuration has none."""
    operator = options.operator
    if not operator.is_on:
        return
    if len(operator.operators) == 1:
        claims = operator.operators[0]
        options.system_account = options.system_account or claims.system_account
        if operator.resolver is None and claims.account_server_url.startswith(("http://", "https://")):
            operator.resolver = ResolverOptions(URL, url=claims.account_server_url.rstrip("/") + "/accounts/")
    if options.accounts is None:
        options.accounts = {}
