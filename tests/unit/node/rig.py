"""A whole node in this process, from the text of a configuration file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from jetcluster import logs
from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import Options
from jetcluster.monitor.start import NodeMonitoring
from jetcluster.node.node import Node
from jetcluster.node.process import reloading
from tests.unit.server.wire import close_all


@asynccontextmanager
async def running(folder: Path, text: str) -> AsyncIterator[Node]:
    """A node on a free port; wires are closed before it stops. The file is `folder/c.conf`; what is written there later
    comes with a reload."""
    path = folder / "c.conf"
    path.write_text(f'listen: "127.0.0.1:-1"\nserver_name: n1\n{text}')

    def read() -> Options:
        return load_file(str(path), {})[0]

    options = read()
    assert problem_of(options) is None
    node = Node(options, logs.get_logger("test"), reloading(read), monitoring=NodeMonitoring)
    await node.start()
    try:
        yield node
    finally:
        await close_all()
        await node.stop()
