"""Figures of one kind each, by name: `python -m bench NAME [--help]`."""

from __future__ import annotations

import argparse
import importlib
import sys

FIGURES = {
    "page": "jetcluster and nats-server in turns: docs/benchmarks.md",
    "sizes": "cost against size, with plots: docs/benchmarks/sizes.md",
    "sizing": "memory, disk and processor time of each thing, and what three plans need: docs/sizing.md",
    "scaling": "reads over replicas and mirrors, a model and its trials: docs/benchmarks/scaling.md, reads.md",
    "arrow": "`jetcluster.arrow`: streams as record batches",
    "attack": "what a client notices of attacks on its server",
    "balance": "three servers grow to six and shrink again, while streams are written to",
    "catchup": "a stream that is written at full speed while another replica joins",
    "connections": "memory of idle clients, processor time of TLS handshakes and permission checks",
    "counts": "instructions of the servers per message of fixed loads, beside the committed figures",
    "crossing": "processor time per message that stays on a node, and that crosses to another one",
    "encryption": "throughput and processor time without a key and with each cipher",
    "fleet": "large clusters of workers in a simulation",
    "flood": "connections that publish without waiting, beside publishers that wait for their acks",
    "idle_streams": "processor time of a node with streams in which nothing happens",
    "letters": "how long an owner looks for dead letters that may be stored already",
    "long_commands": "how long commands that remove very many messages hold a replica",
    "searches": "how long searches with wildcards hold a replica",
    "sick": "how long a publisher goes without acks while the leader's disk is sick",
    "spark": "the Spark source and the archive job",
    "lakehouse": "the lakehouse job: rows per second into Delta and Iceberg tables, and CPU per row",
    "spark_latency": "from a publish to a row of a streaming query, and how much of that is Spark's",
    "restore": "the restore job: rows per second by mode, and CPU per row",
    "sink": "the Spark sink: rows per second, and CPU per row",
    "workers": "throughput and processor time of one worker and of two",
    "subscriptions": "very many subscriptions of one client",
}

PAGES = ("page", "sizes", "sizing", "scaling")
"""Those that write pages of docs/ of their own."""


def main(words: list[str]) -> int:
    """The exit code: 0 where the figure has met its goal, or has none."""
    name = words[0] if words else "--help"
    if name not in FIGURES:
        print(__doc__, *(f"  {one:14} {text}" for one, text in FIGURES.items()), sep="\n")
        return int(name != "--help")
    module = importlib.import_module(f"bench.{name}" if name in PAGES else f"bench.scenarios.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.add_options(parser)
    return int(module.main(parser.parse_args(words[1:])) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
