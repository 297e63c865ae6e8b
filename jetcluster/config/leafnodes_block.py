"""The `leafnodes` block: the port for leaves, and the hubs to connect to (reference sheet core 2.6, 7.3)."""

from __future__ import annotations

from typing import Any

from jetcluster.config.cluster_block import split_url
from jetcluster.config.nkeys import decode_user_key, decode_user_seed
from jetcluster.config.options import LeafOptions, LeafRemoteOptions, LeafUserOptions, Options
from jetcluster.config.parser import Node
from jetcluster.config.reader import (
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_address,
    as_bool,
    as_duration,
    as_int,
    as_map,
    as_seconds,
    as_string,
    as_strings,
    mismatch,
)
from jetcluster.config.security_block import refuse
from jetcluster.config.tls_block import read_link_tls

_SCHEMES = frozenset({"nats", "nats-leaf", "leafnode", "tls", ""})


def _listen(_reader: Reader, node: Node, leafnodes: LeafOptions) -> None:
    host, port = as_address(node)
    leafnodes.host, leafnodes.port = host or leafnodes.host, port


def _check_url(url: str, node: Node) -> str:
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in _SCHEMES:
        raise FieldError(f'leafnode remote "{url}": {scheme} links are not supported yet', node)
    try:
        split_url(url if ":" in url.rpartition("@")[2].removeprefix(f"{scheme}://") else f"{url}:7422")
    except FieldError as error:
        raise FieldError(f'error parsing leafnode url ["{url}"]: {error}', node) from error
    return url


def _url(reader: Reader, node: Node, remote: LeafRemoteOptions) -> None:
    remote.urls = [_check_url(as_string(reader, "url", node), node)]


def _urls(reader: Reader, node: Node, remote: LeafRemoteOptions) -> None:
    remote.urls = [_check_url(url, node) for url in as_strings(reader, "urls", node)]


def _nkey(reader: Reader, node: Node, remote: LeafRemoteOptions) -> None:
    seed = as_string(reader, "nkey", node)
    try:
        decode_user_seed(seed)
    except ValueError as error:
        raise FieldError(f"Remote leafnode nkey is not a valid seed: {error}", node) from error
    remote.nkey = seed


_REMOTE_FIELDS: Fields = {
    **dict.fromkeys(("account", "local"), ("account", as_string)),
    **dict.fromkeys(("creds", "credentials"), ("credentials", as_string)),
    "hub": ("hub", as_bool),
    **dict.fromkeys(("deny_imports", "deny_import"), ("deny_imports", as_strings)),
    **dict.fromkeys(("deny_exports", "deny_export"), ("deny_exports", as_strings)),
    **dict.fromkeys(("no_randomize", "dont_randomize"), ("no_randomize", as_bool)),
    "ignore_discovered_servers": ("ignore_discovered_servers", as_bool),
    "disabled": ("disabled", as_bool),
}
_REMOTE_BLOCKS: Blocks = {
    "url": _url,
    "urls": _urls,
    **dict.fromkeys(("nkey", "seed"), _nkey),
    "tls": read_link_tls,
    "proxy": refuse("proxy of a leafnode remote is not supported yet"),
}
_REMOTE_INERT_KEYS = (
    "compression ws_compression ws_no_masking jetstream_cluster_migrate js_cluster_migrate first_info_timeout "
    "dial_timeout isolate_leafnode_interest isolate request_isolation local_isolation"
)
_REMOTE_INERT = frozenset(_REMOTE_INERT_KEYS.split())


def _remotes(reader: Reader, node: Node, leafnodes: LeafOptions) -> None:
    if not isinstance(node.value, list):
        raise mismatch(node, "[]interface {}")
    leafnodes.remotes = []
    for item in node.value:
        remote = LeafRemoteOptions()
        reader.block(
            as_map(item, "leafnode remote"),
            remote,
            _REMOTE_FIELDS,
            _REMOTE_BLOCKS,
            _REMOTE_INERT,
            path="leafnodes.remotes",
        )
        if not remote.urls:
            raise FieldError("leafnode remote without a url", item)
        if remote.credentials and remote.nkey:
            raise FieldError("Remote leafnode can not have both creds and nkey defined", item)
        leafnodes.remotes.append(remote)


class _Authorization:
    """`leafnodes.authorization` as it is read."""

    def __init__(self) -> None:
        self.user = self.password = self.nkey = ""
        self.account = "$G"
        self.timeout = 0.0
        self.users: list[LeafUserOptions] = []


_USER_FIELDS: Fields = {
    **dict.fromkeys(("user", "username"), ("user", as_string)),
    **dict.fromkeys(("pass", "password"), ("password", as_string)),
    "account": ("account", as_string),
}


def _users(reader: Reader, node: Node, target: Any) -> None:
    if not isinstance(node.value, list):
        raise mismatch(node, "[]interface {}")
    for item in node.value:
        user = LeafUserOptions("", "")
        reader.block(as_map(item, "leafnode user"), user, _USER_FIELDS, {}, path="leafnodes.authorization.users")
        if not user.user:
            raise FieldError("leafnode user without a name", item)
        target.users.append(user)


def _authorization(reader: Reader, node: Node, leafnodes: LeafOptions) -> None:
    found = _Authorization()
    fields: Fields = {**_USER_FIELDS, "nkey": ("nkey", as_string), "timeout": ("timeout", as_seconds)}
    reader.block(as_map(node, "authorization"), found, fields, {"users": _users}, path="leafnodes.authorization")
    if found.user and found.users:
        raise FieldError("can not have a single user/pass and a users array")
    if found.nkey:
        if found.user or found.users:
            raise FieldError("can not have nkey and user/pass or a users array")
        try:
            decode_user_key(found.nkey)
        except ValueError as error:
            raise FieldError(f'leafnode nkey "{found.nkey}" is not a valid user nkey: {error}', node) from error
    single = found.user or found.nkey
    one = LeafUserOptions(found.user, found.password, found.account, found.nkey)
    leafnodes.users = [one] if single else found.users
    leafnodes.auth_timeout = found.timeout or leafnodes.auth_timeout


_FIELDS: Fields = {
    **dict.fromkeys(("host", "net"), ("host", as_string)),
    "port": ("port", as_int),
    "advertise": ("advertise", as_string),
    "no_advertise": ("no_advertise", as_bool),
    **dict.fromkeys(("reconnect", "reconnect_delay", "reconnect_interval"), ("reconnect", as_duration)),
}
_BLOCKS: Blocks = {
    "listen": _listen,
    "remotes": _remotes,
    "authorization": _authorization,
    "tls": read_link_tls,
}
_INERT = frozenset({"compression", "min_version", "isolate_leafnode_interest", "isolate", "write_deadline"})


def read_leafnodes(reader: Reader, node: Node, options: Options) -> None:
    leafnodes = options.leafnodes = LeafOptions()
    reader.block(as_map(node, "leafnodes"), leafnodes, _FIELDS, _BLOCKS, _INERT, path="leafnodes")
