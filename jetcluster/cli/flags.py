"""nats-server's command line, read by the rules of Go's `flag` package: one or two dashes, `-x v` or `-x=v`.

It is neither argparse nor typer, because Go's rules (`-DV`, `-sd=DIR`, `-p -1`) fit neither, and their import would
take a third of the start-up budget.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jetcluster.errors import CallerError

Flag = bool | int | str

NAMES: dict[str, tuple[str, type[bool] | type[int] | type[str]]] = {}
"""Flag without its dashes -> the option that it sets, and the type of its value."""


def _define(kind: type[bool] | type[int] | type[str], dest: str, *names: str) -> None:
    for name in names:
        NAMES[name] = (dest, kind)


_define(str, "host", "a", "addr", "net")
_define(int, "port", "p", "port")
_define(str, "server_name", "n", "name", "server_name")
_define(str, "pid_file", "P", "pid")
_define(int, "http_port", "m", "http_port")
_define(int, "https_port", "ms", "https_port")
_define(str, "config", "c", "config")
_define(bool, "check_config", "t")
_define(str, "test_reload", "test_reload")
_define(str, "signal", "sl", "signal")
_define(str, "client_advertise", "client_advertise")
_define(str, "ports_file_dir", "ports_file_dir")
_define(str, "log_file", "l", "log")
_define(str, "log_format", "log_format")
_define(bool, "logtime", "T", "logtime")
_define(bool, "logtime_utc", "logtime_utc")
_define(bool, "syslog", "s", "syslog")
_define(str, "remote_syslog", "r", "remote_syslog")
_define(bool, "debug", "D", "debug")
_define(bool, "trace", "V", "trace")
_define(bool, "trace_verbose", "VV")
_define(bool, "debug_trace", "DV")
_define(bool, "debug_trace_verbose", "DVV")
_define(int, "log_size_limit", "log_size_limit")
_define(int, "max_traced_msg_len", "max_traced_msg_len")
_define(str, "workers", "workers")
_define(str, "tags", "tags")
_define(int, "worker", "worker")
_define(bool, "jetstream", "js", "jetstream")
_define(str, "store_dir", "sd", "store_dir")
_define(str, "user", "user")
_define(str, "password", "pass")
_define(str, "token", "auth")
_define(bool, "tls", "tls")
_define(str, "tls_cert", "tlscert")
_define(str, "tls_key", "tlskey")
_define(bool, "tls_verify", "tlsverify")
_define(str, "tls_ca", "tlscacert")
_define(str, "routes", "routes")
_define(str, "cluster", "cluster", "cluster_listen")
_define(str, "cluster_name", "cluster_name")
_define(bool, "no_advertise", "no_advertise")
_define(str, "cluster_advertise", "cluster_advertise")
_define(int, "connect_retries", "connect_retries")
_define(int, "profile", "profile")
_define(bool, "help", "h", "help")
_define(bool, "version", "v", "version")
_define(bool, "help_tls", "help_tls")

INERT = ("profile", "connect_retries")
"""Flags accepted without effect, and named in one warning at start (docs/configuration.md)."""

OPTIONAL = "optional"
"""The third value of --tlsverify."""
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class FlagError(CallerError):
    """A command line that Go's `flag` refuses, with its text. nats-server then shows the usage and exits with 0."""


def parse_flags(argv: Sequence[str]) -> tuple[dict[str, Flag], list[str]]:
    """Returns (values by destination, remaining words); the last flag for a destination wins. Raises FlagError."""
    values: dict[str, Flag] = {}
    i = 0
    while i < len(argv):
        word = argv[i]
        if len(word) < 2 or word[0] != "-":
            break
        i += 1
        if word == "--":
            break
        name, equals, text = word[2 if word[1] == "-" else 1 :].partition("=")
        if not name or name[0] == "-":
            raise FlagError(f"bad flag syntax: {word}")
        if name not in NAMES:
            raise FlagError(f"flag provided but not defined: -{name}")
        dest, kind = NAMES[name]
        if kind is bool:
            optional = dest == "tls_verify" and text.lower() == OPTIONAL
            values[dest] = OPTIONAL if optional else _boolean(name, text) if equals else True
            continue
        if not equals:
            if i >= len(argv):
                raise FlagError(f"flag needs an argument: -{name}")
            text = argv[i]
            i += 1
        values[dest] = _integer(name, text) if kind is int else text
    return values, list(argv[i:])


def _boolean(name: str, text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise FlagError(f'invalid boolean value "{text}" for -{name}: parse error')


def _integer(name: str, text: str) -> int:
    """Parses an integer as Go does: also `0x1F`, `0b101`, `0o17`, `017` and `4_222`."""
    octal = re.sub(r"^([+-]?)0([0-7_]+)$", r"\g<1>0o\2", text)
    try:
        number = int(octal, 0) if text == text.strip() else None
    except ValueError:
        number = None
    if number is None:
        raise FlagError(f'invalid value "{text}" for flag -{name}: parse error')
    if not -(1 << 63) <= number < 1 << 63:
        raise FlagError(f'invalid value "{text}" for flag -{name}: value out of range')
    return number


USAGE = """
Usage: {program} [options]

Server Options:
    -a, --addr, --net <host>         Bind to host address (default: 0.0.0.0)
    -p, --port <port>                Port for clients (default: 4222, -1 for a random one)
    -n, --name, --server_name <name> Server name (default: the server's id)
    -P, --pid <file>                 File to store the process id in
    -m, --http_port <port>           Port for monitoring over HTTP
    -ms, --https_port <port>         Port for monitoring over HTTPS
    -c, --config <file>              Configuration file; flags win over it
    -t                               Test the configuration and exit
        --test_reload <file>         With -t: also whether a server that runs with the configuration could reload
                                     this one (exit code 3: it must be restarted)
    -sl, --signal <signal>[=<pid>]   Signal a running server (ldm, stop, quit, term, reopen, reload);
                                     <pid> is a process id or the path of a pid file
        --client_advertise <string>  host:port told to clients and other servers
        --ports_file_dir <dir>       Write nats-server_<pid>.ports into this directory
        --workers <number|auto>      Serve the ports with so many processes (default: 1; auto: one per core)
        --tags <tag, ...>            Server tags, in addition to those of the file

Logging Options:
    -l, --log <file>                 Log to this file instead of stderr
        --log_format <text|json>     Line format (default: text, as nats-server writes it)
    -T, --logtime                    Time stamps in the log (default: true)
        --logtime_utc                Time stamps in UTC (default: false)
    -s, --syslog                     Log to this machine's syslog
    -r, --remote_syslog <url>        Log to a syslog server (udp://localhost:514, tcp://..., unix:///path)
    -D, --debug                      Debugging output
    -V, --trace                      Trace the protocol of clients
    -VV                              The same; nats-server also shows its internal clients, of which there are none
    -DV, -DVV                        Debug and trace
        --log_size_limit <bytes>     Put the log file aside beyond this size (default: never)
        --max_traced_msg_len <bytes> Show so much of a traced message (default: all)

JetStream Options:
    -js, --jetstream                 Enable JetStream
    -sd, --store_dir <dir>           Storage directory

Authorization Options:
        --user <user>                User required for connections
        --pass <password>            Password required for connections
        --auth <token>               Token required for connections

TLS Options:
        --tls                        Enable TLS
        --tlscert <file>             Server certificate
        --tlskey <file>              Private key of the server certificate
        --tlsverify                  Enable TLS and verify client certificates (true, false or optional)
        --tlscacert <file>           Certificate authority of client certificates

Cluster Options:
        --routes <url, url>          Other nodes to connect to
        --cluster, --cluster_listen <url>
                                     Where this node listens for the others
        --cluster_name <string>      Cluster name
        --no_advertise               Do not tell clients about the other nodes
        --cluster_advertise <string> host:port told to other nodes

Accepted without effect:
        --connect_retries <number>   Other nodes are looked for without end
        --profile <port>             There is no profiling port

Common Options:
    -h, --help                       Show this message
    -v, --version                    Show version
        --help_tls                   TLS help
"""

TLS_HELP = """TLS is configured in the tls section of a configuration file:

    tls {
      cert_file: "./certs/server-cert.pem"
      key_file:  "./certs/server-key.pem"
      ca_file:   "./certs/ca.pem"
      verify:    true
      timeout:   2.0
    }

or with the flags --tls, --tlscert, --tlskey, --tlscacert and --tlsverify.
"""
