"""Entry point of `jetcluster`. To start fast, `serve` imports neither typer nor anything else that it does not need."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetcluster.config.options import Options

OVERVIEW = """jetcluster: a clustered JetStream server that stock NATS clients use unchanged

Usage: jetcluster <command> [options]          (jetcluster <command> --help)

Servers:
    serve         Run one server; takes nats-server's flags. The default when a flag comes first
    up            Start a local cluster in one command and watch it
    demo          Show in some seconds what a cluster does when its leader is killed, and prove it

Looking at a cluster:
    status        The cluster on one screen: health and its reasons, leaders, replicas that lag
    health        Is the cluster, or one server, healthy? An exit code for scripts
    doctor        What is wrong with the cluster or this machine, why, and what to do
    streams       List streams: leader, size, replicas that lag
    consumers     List the consumers of a stream, the slowest first
    users         List accounts and users with their connections, usage and limits

Changing it:
    decommission  Empty a server and remove it from the cluster
    rescue        Show what is left of streams that lost their majority for good, and go on with one replica
    backup        Back up an account to a folder or S3, incrementally
    restore       Restore an account, or some of its streams, from a backup
    replay        Put dead letters back into the streams that they came from
    mirror        Mirror a stream of another JetStream domain here
    object        Make buckets for large objects
    pipeline      Jobs on Spark: archive a stream, restore it, check it (needs jetcluster[spark] and Java)

    completion    Print the script that completes commands and options in bash, zsh or fish
"""


RESTART_NEEDED = 3
"""Exit code of `-t --test_reload`, nats-server's: both files are valid, and the second one needs a restart."""


def main(argv: Sequence[str] | None = None, program: str | None = None) -> int:
    """Runs the command line and returns the exit code. Under the name `nats-server` the command is `serve`."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = (sys.argv[0] if program is None else program).rsplit("/", 1)[-1]
    if name == "nats-server":
        return serve(words, "nats-server")
    if words[:1] == ["serve"]:
        return serve(words[1:], "jetcluster serve")
    if not words and "_JETCLUSTER_COMPLETE" in os.environ:  # a shell asks for completions
        from jetcluster.cli import commands, completion

        return completion.complete(commands.app)
    if not words or words[0] in ("help", "-h", "--help", "-help"):
        sys.stdout.write(OVERVIEW)
        return 0
    if words[0] == "version" or words[0].startswith("-"):
        return serve(words, "jetcluster serve")
    if words[0] == "pipeline":
        from jetcluster.pipeline.main import main as pipeline

        return pipeline(words[1:])
    from jetcluster.cli.commands import run_command

    return run_command(words)


def serve(words: Sequence[str], program: str) -> int:
    """Runs `jetcluster serve` until the server is stopped, and returns nats-server's exit code."""
    from jetcluster.cli.flags import TLS_HELP, USAGE, FlagError, parse_flags

    try:
        flags, rest = parse_flags(words)
    except FlagError as error:
        print(error, file=sys.stderr)
        sys.stdout.write(USAGE.format(program=program))
        return 0
    asked = "" if any(flags.get(name) for name in ("version", "help", "help_tls")) else " ".join(rest[:1])
    if flags.get("version") or asked == "version":
        from jetcluster import REPORTED_VERSION, __version__, native

        print(f"nats-server: v{REPORTED_VERSION}")
        if program != "nats-server":  # harnesses of clients parse the line above
            print(f"jetcluster: v{__version__}, {native.described}", file=sys.stderr)
        return 0
    if flags.get("help") or asked == "help":
        sys.stdout.write(USAGE.format(program=program))
        return 0
    if flags.get("help_tls"):
        sys.stdout.write(TLS_HELP)
        return 0
    if rest:
        return _fail(f'unrecognized command: "{rest[0]}"')
    if flags.get("signal"):
        return _signal(str(flags["signal"]))
    if flags.get("check_config"):
        return _check_config(str(flags.get("config", "")), str(flags.get("test_reload", "")))
    if flags.get("test_reload"):
        return _fail("--test_reload can only be used together with -t")
    import signal

    from jetcluster.net.early_port import EARLY

    # Before the port is open, as SIGTERM may follow at once. Nothing has begun yet; the node sets its own handlers.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    EARLY.open(flags)
    return _run(flags, words)


def _fail(text: str) -> int:
    print(f"nats-server: {text}", file=sys.stderr)
    return 1


def _signal(request: str) -> int:
    from jetcluster.cli.signals import SignalError, send_signal

    try:
        send_signal(request)
    except SignalError as error:
        return _fail(str(error))
    return 0


def _check_config(path: str, other: str) -> int:
    """Runs `-t`. Like nats-server's, it fails on values that a start only warns about, such as a duration without a
    unit. Other warnings of a start are printed, and the file is valid. `other` is a file, "" for none: RESTART_NEEDED
    is returned where a server that runs with the first file could not take it over by a reload."""
    if not path:
        return _fail("must specify [-c, --config] option to check configuration file syntax")
    from jetcluster.config.lexer import ConfigError
    from jetcluster.config.load import load_file
    from jetcluster.config.option_checks import problem_of

    try:
        options, pedantic = load_file(path)
    except ConfigError as error:
        return _fail(str(error))
    if pedantic:
        return _fail("\n".join(pedantic) + "\n")
    options.add_start_warnings()
    for warning in options.warnings:
        print(f"nats-server: warning: {warning}", file=sys.stderr)
    if problem := problem_of(options):  # nats-server's -t does not look, and a flag may mend it
        print(f"nats-server: warning: a server does not start with this file alone: {problem}", file=sys.stderr)
    if other and (code := _check_reload(options, other)):
        return code
    print(f"nats-server: configuration file {path} is valid ({options.config_digest})", file=sys.stderr)
    if other:
        print(f"nats-server: configuration file {other} can be reloaded", file=sys.stderr)
    return 0


def _check_reload(options: Options, path: str) -> int:
    """Returns 0 where a server with these options could take over the file by a reload; what depends on the state of
    that server is not checked."""
    from jetcluster.config.changes import changed_fields
    from jetcluster.config.lexer import ConfigError
    from jetcluster.config.load import load_file

    try:
        new, _ = load_file(path)
    except ConfigError as error:
        return _fail(str(error))
    try:
        changed_fields(options, new)
    except ConfigError as error:
        _fail(str(error))
        return RESTART_NEEDED
    return 0


def _run(flags: dict[str, bool | int | str], words: Sequence[str]) -> int:
    gc.disable()  # imports create no garbage; `node.process` enables it with its own thresholds
    from jetcluster import file_modes, logs
    from jetcluster.cli.merge import options_from
    from jetcluster.config.lexer import ConfigError

    try:
        options = options_from(flags)
        workers = _workers(options)
        options.warnings += _arm_faults()
    except (ConfigError, ValueError) as error:
        return _fail(str(error))
    umask = file_modes.keep_private()
    try:
        logs.configure(options)
    except (OSError, ValueError) as error:
        stamp = time.strftime("%Y/%m/%d %H:%M:%S")
        print(f"{stamp} {logs.why_not_opened(options, error)}", file=sys.stderr)
        return 1
    if workers > 1:
        from jetcluster.cli.supervisor import supervise

        try:
            return supervise(options, workers, logs.get_logger("server"), lambda: options_from(flags), words)
        finally:
            logs.shutdown()
    from jetcluster.monitor.start import NodeMonitoring
    from jetcluster.node.process import START_AGAIN, run

    try:
        code = run(options, logs.get_logger("server"), lambda: options_from(flags), NodeMonitoring)
    except KeyboardInterrupt:  # the node does not handle signals yet
        return 1
    finally:
        logs.shutdown()
    file_modes.restore(umask)
    if code == START_AGAIN:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same arguments
    return code


def _workers(options: Options) -> int:
    """Returns the number of worker processes to start; 1: this process serves alone. Raises ValueError."""
    if options.worker is not None:
        return 1
    store = options.jetstream.store_dir
    if options.workers == 1 and not os.path.isdir(f"{store or '/tmp/nats'}/worker-1"):  # noqa: PTH112, S108
        return 1
    from jetcluster.config.workers import count_of, problem_of_store

    count = count_of(options.workers)
    if problem := problem_of_store(options, count):
        raise ValueError(problem)
    return count


def _arm_faults() -> list[str]:
    """Arms the faults of JETCLUSTER_FAULTS and returns warnings for the log. Raises ValueError."""
    asked = os.environ.get("JETCLUSTER_FAULTS")
    if not asked:
        return []
    from jetcluster import faults

    faults.from_environment(asked)
    return [f"{faults.VARIABLE} is set: this server is going to fail on purpose ({asked})"]


if __name__ == "__main__":  # without it `python -m jetcluster.cli.main` would do nothing and exit with 0
    sys.exit(main())
