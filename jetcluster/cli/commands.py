"""Commands other than `serve`, through typer, whose 0.1 s of imports do not matter to interactive commands."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from jetcluster.cli.options import connects
from jetcluster.client.servers import ServerOptions

app = typer.Typer(name="jetcluster", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


class Shell(StrEnum):
    """The shells that completion knows."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.callback()
def _root() -> None:
    """A clustered JetStream server that stock NATS clients use unchanged."""
    # Without a callback typer would make the only command the root, and `jetcluster up` would not parse.


@app.command()
def up(
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=9, help="Number of nodes.")] = 3,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the data here (default: a temporary directory, removed at the end)."),
    ] = None,
    port: Annotated[int, typer.Option(help="Client port of the first node; 0 takes free ports.")] = 4222,
) -> None:
    """Start a local cluster in one command, print how to connect, and show a live status until Ctrl-C.

    Exit codes: 0 stopped, 1 a port is in use or a server did not start.
    """
    from jetcluster.cli.up import run_up

    raise typer.Exit(run_up(nodes, directory, port))


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep the stores and logs of the three servers.")] = False,
) -> None:
    """Start three servers on loopback, kill one while orders are published, read every replica alone, and show what
    that proves; then a key-value bucket and a mirror. Needs nothing outside, takes some seconds, leaves nothing.

    Exit codes: 0 everything was proved, 1 something was not, or the servers did not start.
    """
    from jetcluster.cli.demo.run import run_demo

    raise typer.Exit(run_demo(keep=keep))


@app.command()
@connects
def decommission(
    servers: ServerOptions,
    node: Annotated[str, typer.Argument(help="The server's name, or its peer id.")],
    within: Annotated[float, typer.Option(min=1.0, help="Seconds until the tool stops waiting.")] = 3600.0,
    cancel: Annotated[bool, typer.Option("--cancel", help="Use the server again that was being emptied.")] = False,
) -> None:
    """Move everything away from a server, remove it from the cluster, and verify that. Needs a user of the system
    account.

    Exit codes: 0 done, 1 refused, 2 no server reached or the user is refused, 3 not done in time.
    """
    from jetcluster.cli.decommission import run_decommission

    raise typer.Exit(run_decommission(servers, node, within, cancel=cancel))


@app.command()
def rescue(
    store: Annotated[
        list[Path] | None,
        typer.Option("--store", help="Store directory of a stopped server; all that are left, copied or mounted here."),
    ] = None,
    stream: Annotated[str, typer.Option("--stream", help="ACCOUNT/NAME; without it all streams are shown.")] = "",
    keep: Annotated[Path | None, typer.Option("--keep", help="The store whose replica becomes the stream.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show, also with --keep.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the stream's name.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read every message and verify its checksum.")] = False,
) -> None:
    """Show what is left of streams that lost their majority for good, and go on with one replica of one of them. It
    reads the stores of stopped servers and connects to none.

    Exit codes: 0 shown or done, 1 refused, 2 a store cannot be used.
    """
    from jetcluster.cli.rescue import run_rescue

    raise typer.Exit(run_rescue(store or [], stream, keep, dry_run=dry_run, yes=yes, verify=verify))


@app.command()
@connects
def mirror(
    servers: ServerOptions,
    stream: Annotated[str, typer.Argument(help="The stream to be mirrored.")],
    domain: Annotated[str, typer.Option(help="JetStream domain of the stream, behind a leaf link.")] = "",
    name: Annotated[str, typer.Option(help="Name of the mirror (default: the stream's).")] = "",
    replicas: Annotated[int, typer.Option(min=1, max=9, help="Replicas of the mirror.")] = 1,
    within: Annotated[float, typer.Option(min=1.0, help="Seconds to wait for the servers.")] = 60.0,
) -> None:
    """See to it that a stream of another domain is mirrored here; nothing happens if it is already.

    Exit codes: 0 the mirror is there, 1 refused, 2 no server answered in time or the user is refused.
    """
    from jetcluster.cli.streams import run_mirror

    raise typer.Exit(run_mirror(servers, stream, domain, name, replicas, within))


@app.command()
@connects
def replay(
    servers: ServerOptions,
    stream: Annotated[str, typer.Argument(help="The stream with the dead letters.")],
    subject: Annotated[str, typer.Option("--subject", help="Only letters whose own subject matches.")] = ">",
    seq: Annotated[
        list[int] | None, typer.Option("--seq", help="Only the letter at this sequence; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many letters; 0: all.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Also letters that an earlier, interrupted replay may have put back.")
    ] = False,
) -> None:
    """Publish dead letters to the subjects that their messages had, and delete them. A letter is left where an earlier,
    interrupted replay may have put its message back: older than half of the stream's duplicate window, and the stream
    removed messages since. --again sends it; if no replay was interrupted, it makes none twice.

    Exit codes: 0 done, 1 refused, or some letters were left, 2 no server reached or the user is refused.
    """
    from jetcluster.cli.replay import run_replay

    raise typer.Exit(run_replay(servers, stream, subject, seq or [], limit, dry_run=dry_run, again=again))


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
@connects
def status(
    servers: ServerOptions,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds from one screen of --watch to the next.")] = 2.0,
) -> None:
    """Show the cluster on one screen: servers, health and its reasons, leaders, replicas that lag. Needs a user of the
    system account.

    Exit codes: 0 shown, 2 no server reached, or the user is refused or not of the system account.
    """
    from jetcluster.cli.status import run_status

    raise typer.Exit(run_status(servers, as_json=as_json, watch=watch, every=every))


@app.command()
@connects
def health(
    servers: ServerOptions,
    server: Annotated[str, typer.Argument(help="Name of one server; without it the whole cluster.")] = "",
    as_json: Json = False,
) -> None:
    """Say whether the cluster or one server is healthy, and why not, for scripts. Needs a user of the system account.

    Exit codes: 0 healthy, 1 not healthy, 2 no server reached, or the user is refused or not of the system account.
    """
    from jetcluster.cli.status import run_health

    raise typer.Exit(run_health(servers, server, as_json=as_json))


@app.command()
@connects
def doctor(
    servers: ServerOptions,
    config: Annotated[
        Path | None, typer.Option("--config", help="Configuration file of a server: look at this machine, too.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Only this machine; needs --config.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show all findings, also many of one code.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with the cluster, why, and what to do, worst first. Needs a user of the system account. With
    --config also with this machine: file, limits, clock, disk, ports, routes.

    Exit codes: 0 nothing is bad, 1 something is bad, 2 no server reached, or the user is refused or not of the system
    account.
    """
    from jetcluster.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(servers, config, offline=offline, as_json=as_json, everything=everything))


@app.command()
@connects
def streams(servers: ServerOptions, as_json: Json = False) -> None:
    """List the streams of the user's account, or of all accounts for a user of the system account: leader, size,
    replicas that lag.

    Exit codes: 0 listed, 1 refused (the account has no JetStream), 2 no server reached or the user is refused.
    """
    from jetcluster.cli.stream_lists import run_streams

    raise typer.Exit(run_streams(servers, as_json=as_json))


@app.command()
@connects
def consumers(
    servers: ServerOptions,
    stream: Annotated[str, typer.Argument(help="The stream; ACCOUNT/STREAM for a user of the system account.")],
    as_json: Json = False,
) -> None:
    """List the consumers of a stream, the slowest first.

    Exit codes: 0 listed, 1 refused (no such stream), 2 no server reached or the user is refused.
    """
    from jetcluster.cli.stream_lists import run_consumers

    raise typer.Exit(run_consumers(servers, stream, as_json=as_json))


@app.command()
@connects
def users(servers: ServerOptions, as_json: Json = False) -> None:
    """List accounts and their users: connections, usage and limits. Needs a user of the system account.

    Exit codes: 0 listed, 2 no server reached, or the user is refused or not of the system account.
    """
    from jetcluster.cli.users import run_users

    raise typer.Exit(run_users(servers, as_json=as_json))


Streams = Annotated[list[str] | None, typer.Option("--stream", help="Only this stream; repeat it.")]
Endpoint = Annotated[str, typer.Option("--endpoint", help="URL of S3-compatible storage (default: boto3's).")]
Region = Annotated[str, typer.Option("--region", help="Region of the bucket (default: boto3's).")]
PointName = Annotated[str, typer.Option("--point", help="latest, a point, or a time (UTC): the newest not later.")]


@app.command()
@connects
def backup(
    servers: ServerOptions,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[list|verify|prune] DEST",
            help="A folder or s3://bucket/prefix; list, verify and prune look at it.",
        ),
    ],
    stream: Streams = None,
    keep: Annotated[int, typer.Option(min=0, help="Remove all but the newest points afterwards; 0: none.")] = 0,
    verify: Annotated[bool, typer.Option("--verify", help="Read the new point back and compare checksums.")] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Also if most streams of the newest point are gone.")
    ] = False,
    gone: Annotated[bool, typer.Option("--gone", help="prune: also the last point of a stream that is gone.")] = False,
    point: PointName = "",
    endpoint: Endpoint = "",
    region: Region = "",
    as_json: Json = False,
) -> None:
    """Back up an account: a new restore point, for which only new messages are read; or list, verify, prune points.

    Exit codes: 0 done, 1 refused, 2 no server or no storage reached, 4 the backup is damaged.
    """
    from jetcluster.cli import backup as work

    if not 1 <= len(words) <= 2 or (len(words) == 2 and words[0] not in work.WORDS):
        raise typer.BadParameter(f"give DEST, or one of {', '.join(work.WORDS)} and DEST")
    place = work.Destination(words[-1], endpoint, region)
    if len(words) == 2:
        raise typer.Exit(work.run_catalog(words[0], place, point, keep, gone=gone, as_json=as_json))
    raise typer.Exit(
        work.run_backup(servers, place, stream or [], keep, verify=verify, allow_empty=allow_empty, as_json=as_json)
    )


@app.command()
@connects
def restore(
    servers: ServerOptions,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A folder or s3://bucket/prefix with backups.")],
    point: PointName = "",
    stream: Streams = None,
    name: Annotated[str, typer.Option("--as", help="Another name, for one stream.")] = "",
    subject: Annotated[list[str] | None, typer.Option("--subject", help="With --as: its subjects; repeat it.")] = None,
    replicas: Annotated[int, typer.Option(min=0, max=9, help="Replicas of the streams; 0: as they had.")] = 0,
    no_limits: Annotated[bool, typer.Option("--no-limits", help="Without limits of age, count and size.")] = False,
    keep_age: Annotated[
        bool, typer.Option("--keep-age", help="max_age is longer by the age of the point, so nothing expires at once.")
    ] = False,
    no_placement: Annotated[bool, typer.Option("--no-placement", help="Without the streams' placement.")] = False,
    skip: Annotated[list[str] | None, typer.Option("--skip", help="Not this stream; repeat it.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Leave streams that exist, whatever they hold.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete streams that exist and differ.")] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Do not go on with a restore that was interrupted.")] = False,
    no_consumers: Annotated[bool, typer.Option("--no-consumers", help="Without the streams' consumers.")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not read back what was restored.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    endpoint: Endpoint = "",
    region: Region = "",
    as_json: Json = False,
) -> None:
    """Restore an account's streams, with sequences, times and consumers, from a restore point.

    Exit codes: 0 done, 1 refused, 2 no server or no storage reached, 4 the backup is damaged or the result differs.
    """
    from jetcluster.backup.restore_options import RestoreOptions
    from jetcluster.cli import backup as work

    options = RestoreOptions(
        streams=tuple(stream or ()),
        name=name,
        subjects=tuple(subject or ()),
        replicas=replicas,
        no_limits=no_limits,
        overwrite=overwrite,
        verify=not no_verify,
        no_consumers=no_consumers,
        missing=missing,
        skip=tuple(skip or ()),
        no_placement=no_placement,
        keep_age=keep_age,
        anew=anew,
    )
    place = work.Destination(source, endpoint, region)
    raise typer.Exit(work.run_restore(servers, place, point, options, dry=dry_run, as_json=as_json))


objects = typer.Typer(no_args_is_help=True, help="Buckets of large objects.")
app.add_typer(objects, name="object")


@objects.callback()
def _objects() -> None:
    """Buckets of large objects."""


@objects.command("add")
@connects
def object_add(
    servers: ServerOptions,
    bucket: Annotated[str, typer.Argument(help="The bucket; its stream is OBJ_<bucket>.")],
    replicas: Annotated[int, typer.Option(min=1, max=9, help="Replicas of the bucket.")] = 1,
    storage: Annotated[str, typer.Option(help="file or memory.")] = "file",
    max_bytes: Annotated[int, typer.Option(min=0, help="Size limit in bytes; 0: none.")] = 0,
    ttl: Annotated[float, typer.Option(min=0.0, help="Seconds until an object goes; 0: never.")] = 0.0,
    description: Annotated[str, typer.Option(help="Shown in the stream's info.")] = "",
) -> None:
    """Create a bucket for stock clients and the object service alike.

    Exit codes: 0 the bucket is there, 1 refused, 2 no server answered or the user is refused.
    """
    from jetcluster.cli.streams import Wish, run_add

    raise typer.Exit(run_add(servers, Wish(bucket, replicas, storage, max_bytes, ttl, description)))


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")],
) -> None:
    """Print the script that completes commands and options in a shell.

    bash: eval "$(jetcluster completion bash)" in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, behind compinit. fish:
    jetcluster completion fish > ~/.config/fish/completions/jetcluster.fish

    Exit codes: 0 printed, 2 another shell.
    """
    from jetcluster.cli.completion import print_script

    raise typer.Exit(print_script(app, shell.value))


def run_command(words: Sequence[str]) -> int:
    """Runs a command line that does not start with `serve`, and returns the exit code."""
    try:
        result = app(args=list(words), prog_name="jetcluster", standalone_mode=True)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return result if isinstance(result, int) else 0
