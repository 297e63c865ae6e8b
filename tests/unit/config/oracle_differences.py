"""Differences of `-t` from nats-server 2.15.2: by reason, the cases of oracle_cases.py; and the texts for a value of
the wrong type, of which it has some fifty (a part are Go's own) and this server one."""

from __future__ import annotations

import re

_OF_GO = re.compile(
    r"interface conversion: interface \{\} is .*, not .*"
    r"|error parsing (?:tls|certificates|ocsp) config[:,] .*(?:wrong type|unsupported type|expected '\w+' to be ).*"
    r"|.*(?:unsupported type|unsupported ocsp mode) (?:int64|string|bool|float64|\*conf\.token|map|\[\]).*"
    r"|error parsing operator resolver, wrong type .*"
    r'|error parsing feature flag ".*": expected bool, got .*'
    r"|[Ee]xpected .*\b(?:map|array|string|struct|subject|time duration|host:port)\b.*, got (?![\"']).*"
    r"|\w+ must be int64 or string"
    r"|Expected subject permissions to be a subject, or array of subjects.*"
    r"|Expected an entry for the mapping destination|Unknown entry type for weight of .*"
    r'|.* should be an? (?:array|boolean|map|account map).*, got .*|Expected a parseable size for "max_buffered_msgs".*'
    r'|Expected a parseable size for "(?:info|request)_queue_limit".*|system account name must be a string'
)
_OURS = re.compile(r'(?:each element of )?"[^"]*" must be .*, not an? \w+')
_WRONG_TYPE = "a value of the wrong type"


def without_types(text: str) -> str:
    """The lines of an error, in which those about the type of a value are alike in both servers: only their places are
    left."""
    lines = [re.match(r"((?:c\.conf:\d+:\d+: )?)(.*)", line, re.DOTALL) for line in text.split("\n")]
    assert all(lines), text
    return "\n".join(
        f"{line[1]}{_WRONG_TYPE}" if _OF_GO.fullmatch(line[2]) or _OURS.fullmatch(line[2]) else line[0]
        for line in lines
        if line
    )


DIFFERENT: dict[str, tuple[str, ...]] = {
    "Accepted here: an array out of the environment, and sizes in quotes with B or of accounts": (
        "server_tags: $CFG_LIST",
        'jetstream { max_memory_store: "1GB", max_file_store: "1TiB" }',
        'accounts { A { jetstream { max_mem: 1G, max_file: "1G", max_streams: 1, max_consumers: 1 } } }',
    ),
    "Not supported, so refused by name: docs/configuration.md": (
        "default_js_domain: {A: d}",
        "proxy_protocol: true",
        "proxies { trusted: [ {key: UD466L6EBCM3YY5HEGHJANNTN4LSKTSUXTH7RILHCKEQMQHTBNLHJJXT} ] }",
        "ocsp: true",
        "ocsp: { mode: auto }",
        "cluster { permissions { import: a, export: b } }",
        "gateway { name: g }",
        "gateway { name: g, port: 7222 }",
        'gateway { gateways: [ {name: g, url: "nats://a:1"} ] }',
        "leafnodes { isolate_leafnode_interest: true }",
        'leafnodes { remotes: [ {url: "ws://a:1", ws_compression: true, ws_no_masking: true} ] }',
        'leafnodes { remotes: [ {urls: ["ws://a:1", "nats://a:1"]} ] }',
        'leafnodes { remotes: [ {url: "nats://a:1", jetstream_cluster_migrate: true} ] }',
        'leafnodes { remotes: [ {url: "nats://a:1", jetstream_cluster_migrate: {leader_migrate_delay: "5s"}} ] }',
        'leafnodes { remotes: [ {url: "nats://a:1", request_isolation: true, isolate: true} ] }',
        "accounts { A { msg_trace: a.b } }",
        "accounts { A { msg_trace: { dest: a, sampling: 10% } } }",
    ),
    "A route that nobody can connect to is refused before the start": ('cluster { routes: [ "a b" ] }',),
    "Accounts that are none": ("accounts: 1",),
}
"""Accepted by one and refused by the other."""

WORDED: dict[str, tuple[str, ...]] = {
    "A lonely slash is no white space": (
        "port: 1 / debug: true",
        "/ port: 1",
    ),
    "A key without a value, which ends the enclosing map there": ("a: { b: }",),
    "A number may be the last element of an array": (
        "server_tags: [1]",
        "cluster { accounts: [1] }",
    ),
    "What is not supported is refused before its values are looked at": (
        "default_js_domain: {A: 1}",
        "proxies { trusted: [ {key: x} ] }",
        "cluster { permissions { foo: a } }",
        "mqtt { ack_wait: 1 }",
        "mqtt { max_ack_pending: 99999 }",
        'leafnodes { remotes: [ {url: "ws://a:1", ws_compression: 1} ] }',
        "jetstream { tpm { foo: 1 } }",
        "accounts { A { msg_trace: { dest: a, sampling: 200 } } }",
    ),
    "All errors of a block, not the first one": ("cluster { host: 1, net: 2 }",),
    "Seeds are not shown; why a URL is none is": (
        'cluster { routes: [ "nats://a:x" ] }',
        'leafnodes { remotes: [ {url: "nats://a:1", nkey: bad} ] }',
    ),
    "Accounts, users and TLS: another wording, or a place where the real server has none": (
        "cluster { tls { foo: 1 } }",
        "tls: 1",
        "tls { cert_file: 1 }",
        "tls { verify: 1 }",
        "tls { timeout: x }",
        'tls { min_version: "1.1" }',
        "tls { min_version: 1.2 }",
        "tls { connection_rate_limit: a }",
        "authorization: 1",
        "authorization { user: a, pass: b, timeout: x }",
        "authorization { user: 1 }",
        "authorization { token: 1 }",
        "authorization { users: 1 }",
        "authorization { users: [1] }",
        "authorization { users: [ {user: a, password: b}, {user: a, password: c} ] }",
        "authorization { users: [ {user: a, permissions: 1} ] }",
        "authorization { users: [ {user: a, permissions: {publish: 1}} ] }",
        'authorization { users: [ {user: a, permissions: {publish: "a b"}} ] }',
        'authorization { users: [ {user: a, permissions: {subscribe: "a b c"}} ] }',
        'authorization { users: [ {user: a, permissions: {publish: "a.>.b"}} ] }',
        "authorization { users: [ {user: a, permissions: {allow_responses: {max_responses: 1, ttl: 1}}} ] }",
        "authorization { users: [ {user: a, permissions: {allow_responses: 1}} ] }",
        "accounts: [1]",
        "accounts { A: 1 }",
        "accounts { A { jetstream: foo } }",
        "accounts { A { jetstream: 1 } }",
        'accounts { A { jetstream { max_mem: "1X" } } }',
        "accounts { A { jetstream { max_streams: a } } }",
    ),
    "The place of the value itself, or one where the real server has none": (
        'leafnodes { remotes: [ {url: "nats://a:1", jetstream_cluster_migrate: 1} ] }',
        "jetstream { enabled: 1 }",
        "jetstream { strict: 1 }",
        "jetstream { store_dir: 1 }",
        "jetstream { domain: 1 }",
        "jetstream { unique_tag: 1 }",
        "jetstream { extension_hint: 1 }",
        "jetstream { meta_compact_sync: 1 }",
        "jetstream { limits { max_ack_pending: a } }",
        "jetstream { limits { duplicate_window: 1 } }",
        "jetstream { limits { duplicate_window: x } }",
        "jetstream { limits { batch { max_msgs: a } } }",
    ),
}
"""Refused by both, with other words or at another place."""
