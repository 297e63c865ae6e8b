"""The blocks of links between servers, `cluster` and `leafnodes` with its remotes; also the URLs in flags."""

from __future__ import annotations

import re

from jetcluster.config.nkeys import decode_user_seed
from jetcluster.config.options import ClusterOptions, LeafOptions, LeafRemoteOptions, LeafUserOptions, Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
    FieldError,
    Reader,
    as_list,
    as_map,
    as_string,
    as_strings,
    go_quoted,
    parse_duration,
    split_address,
    without_secret,
    wrong_type,
)
from jetcluster.config.security_block import is_valid_subject

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-.*)?")
_MIN_LEAF_VERSION = (2, 8, 0)
_WEBSOCKET = frozenset({"ws", "wss"})
"""Schemes of links over WebSocket. All other schemes (nats-leaf, leaf, nats, tls) mean the same."""


def split_url(text: str) -> tuple[str, str, str, int]:
    """Returns (user, password, host, port) of `[nats://][user:password@]host:port`. Raises FieldError.

    `urllib.parse` cannot be used: its `.port` refuses -1, which means a random port here.
    """
    rest = text.split("://", 1)[-1].split("/", 1)[0]
    credentials, at, address = rest.rpartition("@")
    user, _, password = credentials.partition(":") if at else ("", "", "")
    if ":" not in address:
        raise FieldError(f"address {address}: missing port in address" if "://" in text else "missing port in address")
    host, port = split_address(address)
    return user, password, host, port


def read_cluster(reader: Reader, node: ConfigNode, options: Options) -> None:
    reader.block(as_map(node, "cluster"), options.cluster, "cluster")


def read_routes(reader: Reader, node: ConfigNode, cluster: ClusterOptions) -> None:
    cluster.routes = []
    known: set[str] = set()
    for item in as_list(node, "routes"):
        url = item.value
        if not isinstance(url, str):
            reader.error(item, str(wrong_type("routes", item, "a string", element=True)))
            continue
        try:
            split_url(url)
        except FieldError as error:
            raise FieldError(f'error parsing route url ["{without_secret(url)}"]: {error}', item) from error
        if url in known:
            shown = go_quoted(without_secret(url))
            reader.warn(item, f'invalid use of field "{shown}": Duplicate route entry detected')
            continue
        known.add(url)
        cluster.routes.append(url)


def as_compression(reader: Reader, name: str, node: ConfigNode) -> str:
    """Returns the mode, which `option_checks` validates. `rtt_thresholds` are checked and ignored, because links are
    not compressed."""
    if isinstance(node.value, str):
        return node.value
    if isinstance(node.value, bool):
        return "s2_auto" if node.value else "off"
    if not isinstance(node.value, dict):
        raise wrong_type(name, node, "a boolean, a string or a map")
    mode = ""
    for key, item in node.value.items():
        if key.lower() == "mode":
            if not isinstance(item.value, str):
                raise wrong_type("mode", item, "a string", at=item)
            mode = item.value
        elif key.lower() in ("rtt_thresholds", "thresholds", "rtts", "rtt"):
            for threshold in as_strings(reader, key, item):
                try:
                    parse_duration(threshold)
                except ValueError as error:
                    raise FieldError(str(error), item) from error
        elif not item.used_as_variable:
            raise FieldError(f'unknown field "{go_quoted(key)}"', item)
    return mode


def read_leafnodes(reader: Reader, node: ConfigNode, options: Options) -> None:
    leafnodes = options.leafnodes = LeafOptions()
    reader.block(as_map(node, "leafnodes"), leafnodes, "leafnodes")


def as_leaf_version(reader: Reader, name: str, node: ConfigNode) -> str:
    text = as_string(reader, name, node)
    found = _VERSION.fullmatch(text)
    if found is None:
        raise FieldError("invalid leafnode's minimum version: invalid semver")
    if tuple(int(part) for part in found.groups()) < _MIN_LEAF_VERSION:
        raise FieldError("the minimum version should be at least 2.8.0")
    return text


class LeafLogin:
    """The keys of `leafnodes.authorization`: one user or several."""

    def __init__(self) -> None:
        self.user = self.password = self.nkey = ""
        self.account = "$G"
        self.timeout = 0.0
        self.users: list[LeafUserOptions] = []


def read_leaf_authorization(reader: Reader, node: ConfigNode, leafnodes: LeafOptions) -> None:
    found = LeafLogin()
    reader.block(as_map(node, "authorization"), found, "leafnodes.authorization")
    if found.user and found.users:
        raise FieldError("can not have a single user/pass and a users array")
    if found.nkey and (found.user or found.users):
        raise FieldError("can not have nkey and user/pass or a users array")
    single = found.user or found.nkey
    one = LeafUserOptions(found.user, found.password, found.account, found.nkey)
    leafnodes.users = [one] if single else found.users
    leafnodes.auth_timeout = found.timeout or leafnodes.auth_timeout


def read_leaf_users(reader: Reader, node: ConfigNode, login: LeafLogin) -> None:
    for item in as_list(node, "users"):
        user = LeafUserOptions("", "")
        reader.block(as_map(item, "users", element=True), user, "leafnodes.authorization.users")
        if not user.user:
            raise FieldError("leafnode user without a name", item)
        login.users.append(user)


def read_remotes(reader: Reader, node: ConfigNode, leafnodes: LeafOptions) -> None:
    leafnodes.remotes = []
    for item in as_list(node, "remotes"):
        if not isinstance(item.value, dict):
            raise wrong_type("remotes", item, "a map", element=True, at=item)
        remote = LeafRemoteOptions()
        if not reader.block(item.value, remote, "leafnodes.remotes"):
            continue
        if not remote.urls:
            raise FieldError("leafnode remote without a url", item)
        if remote.credentials and remote.nkey:
            raise FieldError("Remote leafnode can not have both creds and nkey defined", item)
        if any((known.urls, known.account) == (remote.urls, remote.account) for known in leafnodes.remotes):
            raise FieldError(f"duplicate remote {shown(remote)}", item)
        leafnodes.remotes.append(remote)


def as_remote_urls(reader: Reader, name: str, node: ConfigNode) -> list[str]:
    return [_checked_url(url, node) for url in as_strings(reader, name, node)]


def _checked_url(url: str, node: ConfigNode) -> str:
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in _WEBSOCKET:
        raise FieldError(f'leafnode remote "{without_secret(url)}": {scheme} links are not supported', node)
    try:
        split_url(url if ":" in url.rpartition("@")[2].removeprefix(f"{scheme}://") else f"{url}:7422")
    except FieldError as error:
        raise FieldError(f'error parsing leafnode url ["{without_secret(url)}"]: {error}', node) from error
    return url


def as_remote_seed(reader: Reader, name: str, node: ConfigNode) -> str:
    seed = as_string(reader, name, node)
    try:
        decode_user_seed(seed)
    except ValueError as error:  # nats-server shows the seed, which may differ from a real one by one character
        raise FieldError(f"Remote leafnode nkey is not a valid seed: {error}") from error
    return seed


def shown(remote: LeafRemoteOptions) -> str:
    """Returns the name of a remote in errors."""
    urls = " ".join(f'"{without_secret(url)}"' for url in remote.urls)
    return f'urls=[{urls}], account="{remote.account}"'


def as_denied_subjects(reader: Reader, name: str, node: ConfigNode) -> list[str]:
    found = as_strings(reader, name, node)
    for subject in found:
        if not is_valid_subject(subject):
            raise FieldError(f'subject "{go_quoted(subject)}" is not a valid subject')
    return found


def refuse_migration(_reader: Reader, node: ConfigNode, _remote: LeafRemoteOptions) -> None:
    if not isinstance(node.value, bool | dict):
        raise wrong_type("jetstream_cluster_migrate", node, "a boolean or a map")
    if node.value is not False:
        raise FieldError("jetstream_cluster_migrate is not supported: leaders stay where they are without the hub")
