"""The `leafnodes` block: the port for leaves, and the hubs to connect to."""

from __future__ import annotations

import re
from typing import Any

from jetcluster.config.cluster_block import as_compression, split_url
from jetcluster.config.nkeys import decode_user_key, decode_user_seed
from jetcluster.config.options import LeafOptions, LeafRemoteOptions, LeafUserOptions, Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    INERT,
    Blocks,
    FieldError,
    Fields,
    Reader,
    as_bool,
    as_duration,
    as_int,
    as_map,
    as_seconds,
    as_string,
    as_strings,
    as_write_timeout,
    duration_of,
    go_quoted,
    go_type,
    go_value,
    read_listen,
    refuse,
    refuse_when_true,
    without_secret,
)
from jetcluster.config.security_block import is_valid_subject
from jetcluster.config.tls_block import read_link_tls

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-.*)?")
_LEAST_VERSION = (2, 8, 0)
_WEBSOCKET = frozenset({"ws", "wss"})
"""Any other scheme means the same; people write nats-leaf, leaf, nats, tls."""


def _check_url(url: str, node: ConfigNode) -> str:
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in _WEBSOCKET:
        raise FieldError(f'leafnode remote "{without_secret(url)}": {scheme} links are not supported', node)
    try:
        split_url(url if ":" in url.rpartition("@")[2].removeprefix(f"{scheme}://") else f"{url}:7422")
    except FieldError as error:
        raise FieldError(f'error parsing leafnode url ["{without_secret(url)}"]: {error}', node) from error
    return url


def _urls(reader: Reader, node: ConfigNode, remote: LeafRemoteOptions) -> None:
    if not isinstance(node.value, str | list):
        raise FieldError(f"Expected remote leafnode url to be an array or string, got {go_value(node)}")
    remote.urls = [_check_url(url, node) for url in as_strings(reader, "urls", node)]


def _nkey(reader: Reader, node: ConfigNode, remote: LeafRemoteOptions) -> None:
    seed = as_string(reader, "nkey", node)
    try:
        decode_user_seed(seed)
    except ValueError as error:  # nats-server shows the seed; it may be right but for a character
        raise FieldError(f"Remote leafnode nkey is not a valid seed: {error}", node) from error
    remote.nkey = seed


def _subjects(_reader: Reader, _name: str, node: ConfigNode) -> list[str]:
    items = node.value if isinstance(node.value, list) else [node]
    for item in items:
        if not isinstance(item.value, str):
            expected = "Expected subject permissions to be a subject, or array of subjects"
            raise FieldError(f"{expected}, got {go_type(item)}")
        if not is_valid_subject(item.value):
            raise FieldError(f'subject "{go_quoted(item.value)}" is not a valid subject')
    return [str(item.value) for item in items]


def refuse_migration(_reader: Reader, node: ConfigNode, _remote: LeafRemoteOptions) -> None:
    if not isinstance(node.value, bool | dict):
        raise FieldError(f"Expected boolean or map for jetstream_cluster_migrate, got {go_type(node)}")
    if node.value is not False:
        raise FieldError("jetstream_cluster_migrate is not supported: leaders stay where they are without the hub")


def _min_version(reader: Reader, name: str, node: ConfigNode) -> str:
    text = as_string(reader, name, node)
    found = _VERSION.fullmatch(text)
    if found is None:
        raise FieldError("invalid leafnode's minimum version: invalid semver")
    if tuple(int(part) for part in found.groups()) < _LEAST_VERSION:
        raise FieldError("the minimum version should be at least 2.8.0")
    return text


REMOTE_FIELDS: Fields = {
    **dict.fromkeys(("account", "local"), ("account", as_string)),
    **dict.fromkeys(("creds", "credentials"), ("credentials", as_string)),
    "hub": ("hub", as_bool),
    **dict.fromkeys(("deny_imports", "deny_import"), ("deny_imports", _subjects)),
    **dict.fromkeys(("deny_exports", "deny_export"), ("deny_exports", _subjects)),
    **dict.fromkeys(("no_randomize", "dont_randomize"), ("no_randomize", as_bool)),
    "ignore_discovered_servers": ("ignore_discovered_servers", as_bool),
    "disabled": ("disabled", as_bool),
    "dial_timeout": ("dial_timeout", as_duration),
    "first_info_timeout": ("first_info_timeout", as_duration),
    "compression": (INERT, as_compression),
    **dict.fromkeys(("ws_compress", "ws_compression", "websocket_compress", "websocket_compression"), (INERT, as_bool)),
    **dict.fromkeys(("ws_no_masking", "websocket_no_masking"), (INERT, as_bool)),
}
_ISOLATION = refuse_when_true("isolation of leafnodes is not supported: all links of an account share their interest")
REMOTE_BLOCKS: Blocks = {
    **dict.fromkeys(("url", "urls"), _urls),
    **dict.fromkeys(("nkey", "seed"), _nkey),
    "tls": read_link_tls,
    "proxy": refuse("proxy of a leafnode remote is not supported"),
    **dict.fromkeys(("jetstream_cluster_migrate", "js_cluster_migrate"), refuse_migration),
    **dict.fromkeys(("isolate_leafnode_interest", "isolate", "request_isolation"), _ISOLATION),
}


def _remotes(reader: Reader, node: ConfigNode, leafnodes: LeafOptions) -> None:
    if not isinstance(node.value, list):
        raise FieldError(f"Expected remotes field to be an array, got {go_type(node)}")
    leafnodes.remotes = []
    for item in node.value:
        remote = LeafRemoteOptions()
        if not isinstance(item.value, dict):
            raise FieldError(f"Expected remote leafnode entry to be a map/struct, got {go_value(item)}", item)
        known_errors = len(reader.errors)
        reader.block(
            item.value,
            remote,
            REMOTE_FIELDS,
            REMOTE_BLOCKS,
            path="leafnodes.remotes",
        )
        if len(reader.errors) > known_errors:
            continue
        if not remote.urls:
            raise FieldError("leafnode remote without a url", item)
        if remote.credentials and remote.nkey:
            raise FieldError("Remote leafnode can not have both creds and nkey defined", item)
        same = [known for known in leafnodes.remotes if (known.urls, known.account) == (remote.urls, remote.account)]
        if same:
            urls = " ".join(f'"{without_secret(url)}"' for url in remote.urls)
            raise FieldError(f'duplicate remote urls=[{urls}], account="{remote.account}"', item)
        leafnodes.remotes.append(remote)


def _user_nkey(reader: Reader, name: str, node: ConfigNode) -> str:
    text = as_string(reader, name, node)
    try:
        decode_user_key(text)
    except ValueError as error:
        raise FieldError("Not a valid public nkey for leafnode authorization") from error
    return text


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


def _users(reader: Reader, node: ConfigNode, target: Any) -> None:
    if not isinstance(node.value, list):
        raise FieldError(f"Expected users field to be an array, got {go_value(node)}")
    for item in node.value:
        user = LeafUserOptions("", "")
        reader.block(as_map(item, "leafnode user"), user, _USER_FIELDS, {}, path="leafnodes.authorization.users")
        if not user.user:
            raise FieldError("leafnode user without a name", item)
        target.users.append(user)


_AUTHORIZATION_BLOCKS: Blocks = {"users": _users, "proxy_required": refuse_when_true("proxy_required is not supported")}


def _authorization(reader: Reader, node: ConfigNode, leafnodes: LeafOptions) -> None:
    found = _Authorization()
    fields: Fields = {**_USER_FIELDS, "nkey": ("nkey", _user_nkey), "timeout": ("timeout", as_seconds)}
    reader.block(as_map(node, "authorization"), found, fields, _AUTHORIZATION_BLOCKS, path="leafnodes.authorization")
    if found.user and found.users:
        raise FieldError("can not have a single user/pass and a users array")
    if found.nkey and (found.user or found.users):
        raise FieldError("can not have nkey and user/pass or a users array")
    single = found.user or found.nkey
    one = LeafUserOptions(found.user, found.password, found.account, found.nkey)
    leafnodes.users = [one] if single else found.users
    leafnodes.auth_timeout = found.timeout or leafnodes.auth_timeout


FIELDS: Fields = {
    **dict.fromkeys(("host", "net"), ("host", as_string)),
    "port": ("port", as_int),
    **dict.fromkeys(("advertise", "leafnode_advertise"), ("advertise", as_string)),
    "no_advertise": ("no_advertise", as_bool),
    **dict.fromkeys(("reconnect", "reconnect_delay", "reconnect_interval"), ("reconnect", duration_of("reconnect"))),
    "dial_timeout": ("dial_timeout", as_duration),
    **dict.fromkeys(("min_version", "minimum_version"), ("min_version", _min_version)),
    "compression": ("compression", as_compression),
    "write_deadline": (INERT, as_duration),
    "write_timeout": (INERT, as_write_timeout),
}
BLOCKS: Blocks = {
    "listen": read_listen,
    "remotes": _remotes,
    "authorization": _authorization,
    "tls": read_link_tls,
    **dict.fromkeys(("isolate_leafnode_interest", "isolate"), _ISOLATION),
}
INERT_NAMES = frozenset({"compression"})


def read_leafnodes(reader: Reader, node: ConfigNode, options: Options) -> None:
    leafnodes = options.leafnodes = LeafOptions()
    if not isinstance(node.value, dict):
        raise FieldError(f"Expected map to define a leafnode, got {go_type(node)}")
    reader.block(node.value, leafnodes, FIELDS, BLOCKS, INERT_NAMES, path="leafnodes")
