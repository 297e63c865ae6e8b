"""The form of payloads that the arguments of `jetcluster pipeline lakehouse` name, with its schema."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jetcluster.pipeline.result import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from jetcluster.pipeline.tables.payload import PayloadFormat

FORMATS: Final = ("raw", "json", "avro", "protobuf")
_PACKAGES: Final = {"avro": "fastavro", "protobuf": "google.protobuf"}
"""The package that parses a form of payloads; the extra of jetcluster has the form's name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=FORMATS, default="raw", help="payloads as they are, or as columns (%(default)s)"
    )
    parser.add_argument(
        "--schema",
        metavar="DDL",
        help="with json: the columns, as in SQL (default: inferred, and new fields are added)",
    )
    parser.add_argument(
        "--schema-file",
        metavar="FILE",
        action="append",
        default=[],
        help="with avro: a schema, repeated for older ones, the table's last; with protobuf: a FileDescriptorSet",
    )
    parser.add_argument("--message", metavar="NAME", help="with protobuf: the full name of the message type")


def check(args: argparse.Namespace, reserved: tuple[str, ...]) -> None:
    """Checks what needs no Spark, also the schemas themselves. Raises UsageError, EnvironmentProblem."""
    if args.schema and args.format != "json":
        raise UsageError("--schema is for --format json")
    if args.schema_file and args.format not in _PACKAGES:
        raise UsageError("--schema-file is for --format avro and protobuf")
    if (args.message is not None) != (args.format == "protobuf"):
        raise UsageError("--message is for --format protobuf, which needs it")
    package = _PACKAGES.get(args.format)
    if package is None:
        return
    if not args.schema_file:
        raise UsageError(f"--format {args.format} needs --schema-file")
    if args.format == "protobuf" and len(args.schema_file) > 1:
        raise UsageError("--format protobuf takes one --schema-file, with all imports in it")
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # there is no package around it either
        found = None
    if found is None:
        extra = f'pip install "jetcluster[{args.format}]"'
        raise EnvironmentProblem(f"--format {args.format} needs {package}, not installed: {extra}")
    from jetcluster.pipeline.tables.payload import check_columns

    form = by_schema_file(args)
    assert form is not None
    try:
        check_columns(form.columns, reserved)
    except UsageError as error:
        raise UsageError(f"{', '.join(args.schema_file)}: {error}") from None


def by_schema_file(args: argparse.Namespace) -> PayloadFormat | None:
    """Returns the form whose schema is in files; None for another one. Raises UsageError."""
    if args.format not in _PACKAGES:
        return None
    try:
        contents = [Path(name).read_bytes() for name in args.schema_file]
        texts = tuple(one.decode() for one in contents) if args.format == "avro" else ()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--schema-file: {error}") from None
    if args.format == "avro":
        from jetcluster.pipeline.tables.avro_rows import AvroFormat

        return AvroFormat(texts)
    from jetcluster.pipeline.tables.protobuf_rows import ProtobufFormat

    return ProtobufFormat(contents[0], args.message)


def payload_format(args: argparse.Namespace, declared: Any) -> PayloadFormat | None:
    """Returns the form of payloads; None: they are kept as they are. `declared`: a struct of the columns that
    `--schema` names, or None. Raises UsageError."""
    if args.format == "raw":
        return None
    if (form := by_schema_file(args)) is not None:
        return form
    from jetcluster.pipeline.tables.json_rows import JsonFormat

    return JsonFormat(declared)
