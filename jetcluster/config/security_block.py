"""The `authorization` and `accounts` blocks.

What would weaken security if it were silently ignored (auth callout, certificate mapping, pins) is refused.
"""

from __future__ import annotations

from typing import Any

from jetcluster.config.account_options import (
    AccountJetStreamOptions,
    AccountOptions,
    AuthorizationOptions,
    PermissionOptions,
    ResponseOptions,
    SubjectLists,
    UserOptions,
)
from jetcluster.config.exports_block import read_exports, read_imports, read_mappings
from jetcluster.config.nkeys import decode_user_key, is_key
from jetcluster.config.options import Options
from jetcluster.config.parser import ConfigNode
from jetcluster.config.reader import (
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
    go_quoted,
    go_value,
    refuse,
    storage_size,
)

CLUSTER_PERMISSIONS = "cluster permissions are not supported: all nodes of a cluster see all subjects"
CONNECTION_TYPES = frozenset({"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"})


def is_valid_subject(subject: str) -> bool:
    """True for a subject or filter: no empty token, no white space, `>` only at the end."""
    tokens = subject.split(".")
    return all(token and not any(c in " \t\r\n\0" for c in token) for token in tokens) and ">" not in tokens[:-1]


# --- permissions ------------------------------------------------------------------------------------------------------


def _subjects(reader: Reader, node: ConfigNode, is_subscribe: bool) -> list[str]:
    items = node.value if isinstance(node.value, list) else [node]
    subjects: list[str] = []
    for item in items:
        if not isinstance(item.value, str):
            raise FieldError("Expected subject permissions to be a subject, or array of subjects")
        parts = item.value.split()
        if is_subscribe and len(parts) == 2 and all(is_valid_subject(part) for part in parts):
            subjects.append(" ".join(parts))
        elif is_valid_subject(item.value):
            subjects.append(item.value)
        else:
            reader.error(item, f'subject "{item.value}" is not a valid subject')
    return subjects


def _subject_lists(reader: Reader, node: ConfigNode, is_subscribe: bool) -> SubjectLists:
    if not isinstance(node.value, dict):
        return SubjectLists(allow=_subjects(reader, node, is_subscribe))
    lists = SubjectLists()
    for key, item in node.value.items():
        name = key.lower()
        if item.used_as_variable:
            continue
        if name == "allow":
            lists.allow = _subjects(reader, item, is_subscribe)
        elif name == "deny":
            lists.deny = _subjects(reader, item, is_subscribe)
        else:
            reader.error(
                item, f"Unknown field name \"{key}\" parsing subject permissions, only 'allow' or 'deny' are permitted"
            )
    return lists


def _publish(reader: Reader, node: ConfigNode, target: PermissionOptions) -> None:
    target.publish = _subject_lists(reader, node, is_subscribe=False)


def _subscribe(reader: Reader, node: ConfigNode, target: PermissionOptions) -> None:
    target.subscribe = _subject_lists(reader, node, is_subscribe=True)


def _responses(reader: Reader, node: ConfigNode, target: PermissionOptions) -> None:
    if isinstance(node.value, bool):
        target.responses = ResponseOptions() if node.value else None
        return
    target.responses = ResponseOptions()
    reader.block(
        as_map(node, "allow_responses"),
        target.responses,
        _RESPONSE_FIELDS,
        path="allow_responses",
        unknown='Unknown field "{key}" parsing permissions',
    )


def _response_count(reader: Reader, name: str, node: ConfigNode) -> int:
    """0 is the default, and less is no limit."""
    return as_int(reader, name, node) or ResponseOptions().max_messages


def _response_time(reader: Reader, name: str, node: ConfigNode) -> float:
    return as_duration(reader, name, node) or ResponseOptions().expires


_RESPONSE_FIELDS: Fields = {
    **dict.fromkeys(("max", "max_msgs", "max_messages", "max_responses"), ("max_messages", _response_count)),
    **dict.fromkeys(("expires", "expiration", "ttl"), ("expires", _response_time)),
}
_PERMISSION_BLOCKS: Blocks = {
    **dict.fromkeys(("publish", "pub", "import"), _publish),
    **dict.fromkeys(("subscribe", "sub", "export"), _subscribe),
    **dict.fromkeys(("allow_responses", "allow_response", "publish_allow_responses"), _responses),
}


def as_permissions(reader: Reader, _name: str, node: ConfigNode) -> PermissionOptions:
    permissions = PermissionOptions()
    pairs = as_map(node, "permissions")
    unknown = 'Unknown field "{key}" parsing permissions'
    reader.block(pairs, permissions, {}, _PERMISSION_BLOCKS, path="permissions", unknown=unknown)
    return permissions


# --- users ------------------------------------------------------------------------------------------------------------


def _nkey(_reader: Reader, _name: str, node: ConfigNode) -> str:
    text = as_string(_reader, _name, node)
    try:
        decode_user_key(text)
    except ValueError as error:
        raise FieldError("Not a valid public nkey for a user") from error
    return text


def _connection_types(reader: Reader, name: str, node: ConfigNode) -> list[str]:
    types = [text.upper() for text in as_strings(reader, name, node)]
    bad = [text for text in types if text not in CONNECTION_TYPES]
    if bad:
        listed = " ".join(f'"{text}"' for text in bad)
        raise FieldError(f"invalid connection types [{listed}]")
    return types


_USER_FIELDS: Fields = {
    "user": ("user", as_string),
    "username": ("user", as_string),
    "nkey": ("nkey", _nkey),
    "pass": ("password", as_string),
    "password": ("password", as_string),
    **dict.fromkeys(("permission", "permissions", "authorization"), ("permissions", as_permissions)),
    **dict.fromkeys(
        ("allowed_connection_types", "connection_types", "clients"), ("connection_types", _connection_types)
    ),
}


def _users(reader: Reader, node: ConfigNode, account: str) -> list[UserOptions]:
    reader.user_places[account] = node
    if not isinstance(node.value, list):
        raise FieldError("Expected users field to be an array")
    users: list[UserOptions] = []
    for item in node.value:
        known_errors = len(reader.errors)
        user = UserOptions(account=account)
        reader.block(
            as_map(item, "user"),
            user,
            _USER_FIELDS,
            {"proxy_required": refuse("proxy_required is not supported")},
            path="users",
        )
        if len(reader.errors) > known_errors:
            continue
        place = next(reversed(as_map(item, "user").values()), item)  # the last key that was read, as upstream
        if not user.user and not user.nkey:
            reader.error(place, "User entry requires a user")
        elif user.nkey and (user.user or user.password):
            reader.error(place, "Nkey users do not take usernames or passwords")
        users.append(user)
    return users


# --- authorization ----------------------------------------------------------------------------------------------------


def _authorization_users(reader: Reader, node: ConfigNode, target: AuthorizationOptions) -> None:
    target.users = _users(reader, node, "$G")


_AUTHORIZATION_FIELDS: Fields = {
    "user": ("user", as_string),
    "username": ("user", as_string),
    "pass": ("password", as_string),
    "password": ("password", as_string),
    "token": ("token", as_string),
    "timeout": ("timeout", as_seconds),
    **dict.fromkeys(
        ("default_permission", "default_permissions", "permissions"), ("default_permissions", as_permissions)
    ),
}
_AUTHORIZATION_BLOCKS: Blocks = {
    "users": _authorization_users,
    "auth_callout": refuse("auth_callout is not supported"),
    "proxy_required": refuse("proxy_required is not supported"),
}


def read_authorization(reader: Reader, node: ConfigNode, options: Options) -> None:
    auth = options.authorization = AuthorizationOptions(given=True)
    pairs = as_map(node, "authorization")
    reader.block(pairs, auth, _AUTHORIZATION_FIELDS, _AUTHORIZATION_BLOCKS, path="authorization")
    if auth.token and (auth.user or auth.password):
        raise FieldError("Cannot have a user/pass and token")
    if "users" in {key.lower() for key in pairs}:
        if auth.user:
            raise FieldError("Can not have a single user/pass and a users array")
        if auth.token:
            raise FieldError("Can not have a token and a users array")
    if auth.default_permissions is not None:
        _apply_defaults(auth.users, auth.default_permissions)


def read_cluster_authorization(reader: Reader, node: ConfigNode, target: Any) -> None:
    auth = target.authorization = AuthorizationOptions()
    pairs = as_map(node, "authorization")
    reader.block(pairs, auth, _AUTHORIZATION_FIELDS, _AUTHORIZATION_BLOCKS, path="cluster.authorization")
    if auth.users or "users" in pairs:
        raise FieldError("Cluster authorization does not allow multiple users")
    if auth.token:
        raise FieldError("Cluster authorization does not support tokens")
    if auth.default_permissions is not None:
        raise FieldError(CLUSTER_PERMISSIONS)


def _apply_defaults(users: list[UserOptions], permissions: PermissionOptions) -> None:
    for user in users:
        if user.permissions is None:
            user.permissions = permissions


# --- accounts ---------------------------------------------------------------------------------------------------------


def _cluster_traffic(_reader: Reader, name: str, node: ConfigNode) -> str:
    """Whose account Raft's messages between servers count for in nats-server; here it is no account's."""
    if node.value not in ("system", "owner", ""):
        raise FieldError(f"Expected 'system' or 'owner' string value for \"{name}\", got {go_value(node)}")
    return ""


def _account_nkey(reader: Reader, name: str, node: ConfigNode) -> str:
    text = as_string(reader, name, node)
    if not is_key("A", text):
        raise FieldError(f'Not a valid public nkey for an account: "{go_quoted(text)}"')
    return text


_ACCOUNT_JETSTREAM_FIELDS: Fields = {
    **dict.fromkeys(("max_memory", "max_mem", "mem", "memory"), ("max_memory", storage_size("max_memory"))),
    **dict.fromkeys(("max_store", "max_file", "max_disk", "store", "disk"), ("max_store", storage_size("max_store"))),
    **dict.fromkeys(("max_streams", "streams"), ("max_streams", as_int)),
    **dict.fromkeys(("max_consumers", "consumers"), ("max_consumers", as_int)),
    "max_ack_pending": ("max_ack_pending", as_int),
    **dict.fromkeys(
        ("memory_max_stream_bytes", "mem_max_stream_bytes"),
        ("memory_max_stream_bytes", storage_size("memory_max_stream_bytes")),
    ),
    **dict.fromkeys(
        ("store_max_stream_bytes", "disk_max_stream_bytes", "file_max_stream_bytes"),
        ("store_max_stream_bytes", storage_size("store_max_stream_bytes")),
    ),
    **dict.fromkeys(("max_bytes_required", "max_stream_bytes", "max_bytes"), ("max_bytes_required", as_bool)),
    "cluster_traffic": ("", _cluster_traffic),
}
_ACCOUNT_LIMIT_FIELDS: Fields = {
    **dict.fromkeys(("max_connections", "max_conn"), ("max_connections", as_int)),
    **dict.fromkeys(("max_subscriptions", "max_subs"), ("max_subscriptions", as_int)),
    **dict.fromkeys(("max_payload", "max_pay"), ("max_payload", as_int)),
    **dict.fromkeys(("max_leafnodes", "max_leafs"), ("max_leafnodes", as_int)),
}


def _account_jetstream(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    value = node.value
    if isinstance(value, bool):
        account.jetstream = AccountJetStreamOptions() if value else None
    elif isinstance(value, str):
        word = value.lower()
        if word not in ("enabled", "enable", "disabled", "disable"):
            raise FieldError(f"Expected 'enabled' or 'disabled' for string value, got '{value}'")
        account.jetstream = AccountJetStreamOptions() if word.startswith("enable") else None
    else:
        account.jetstream = AccountJetStreamOptions()
        reader.block(
            as_map(node, "JetStream"),
            account.jetstream,
            _ACCOUNT_JETSTREAM_FIELDS,
            inert=frozenset({"cluster_traffic"}),
            path=f"accounts.{account.name}.jetstream",
        )


def _account_limits(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    reader.block(
        as_map(node, "account limits"),
        account.limits,
        _ACCOUNT_LIMIT_FIELDS,
        path=f"accounts.{account.name}.limits",
        unknown='Unknown field "{key}" parsing account limits',
    )


def _account_users(reader: Reader, node: ConfigNode, account: AccountOptions) -> None:
    account.users = _users(reader, node, account.name)


_ACCOUNT_FIELDS: Fields = {
    "nkey": ("nkey", _account_nkey),
    **dict.fromkeys(
        ("default_permission", "default_permissions", "permissions"), ("default_permissions", as_permissions)
    ),
}
_ACCOUNT_BLOCKS: Blocks = {
    "users": _account_users,
    "jetstream": _account_jetstream,
    "limits": _account_limits,
    "exports": read_exports,
    "imports": read_imports,
    **dict.fromkeys(("mappings", "maps"), read_mappings),
    **dict.fromkeys(
        ("msg_trace", "trace_dest"),
        refuse("traces that a Traceparent header asks for are not supported: a publisher asks with Nats-Trace-Dest"),
    ),
}
_ACCOUNT_INERT = frozenset({"nkey"})


def read_accounts(reader: Reader, node: ConfigNode, options: Options) -> None:
    """`accounts { A { users: [...] } }` or `accounts: [A, B]`."""
    if isinstance(node.value, list):
        options.accounts = {}
        for item in node.value:
            name = as_string(reader, "accounts", item)
            if name in options.accounts:
                raise FieldError(f"Duplicate Account Entry: {name}", item)
            options.accounts[name] = AccountOptions(name)
        return
    options.accounts = {}
    for name, item in as_map(node, "accounts").items():
        if item.used_as_variable:
            continue
        account = options.accounts[name] = AccountOptions(name)
        if name == "$G":
            reader.error(item, '"$G" is a Reserved Account')
            continue
        try:
            reader.block(
                as_map(item, "account"),
                account,
                _ACCOUNT_FIELDS,
                _ACCOUNT_BLOCKS,
                _ACCOUNT_INERT,
                path=f"accounts.{name}",
            )
        except FieldError as error:
            reader.error(error.node or item, str(error))
        if account.default_permissions is not None:
            _apply_defaults(account.users, account.default_permissions)


def check_users(reader: Reader, options: Options) -> None:
    """Rules across blocks: a name exists once, and accounts with users exclude a single user or a token."""
    auth = options.authorization
    account_users = [user for account in (options.accounts or {}).values() for user in account.users]
    if account_users and (auth.user or auth.token):
        kind = "single user/pass" if auth.user else "token"
        reader.error(reader.user_places[account_users[0].account], f"Can not have a {kind} and accounts")
    seen: set[str] = set()
    for user in [*auth.users, *account_users]:
        name = user.user or user.nkey
        if name in seen:
            kind = "user" if user.user else "nkey"
            reader.error(reader.user_places[user.account], f'Duplicate {kind} "{name}" detected')
        seen.add(name)
