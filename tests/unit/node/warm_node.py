"""A server that tells on its standard output, for each line of its input, what it has imported and how much processor
time it has used: `python -m tests.unit.node.warm_node <configuration file>`."""

from __future__ import annotations

import json
import sys
import threading
import time


def tell() -> None:
    for _ in sys.stdin:
        found = [name for name, module in list(sys.modules.items()) if is_complete(module)]
        built = [False]
        if "jetcluster.api.endpoints" in found and "jetcluster.model.api" in found:
            built = [model.__pydantic_complete__ for model in sys.modules["jetcluster.model.base"].models()]
        told = {"seconds": time.process_time(), "modules": found, "built": all(built)}
        print(json.dumps(told), flush=True)


def is_complete(module: object) -> bool:
    """It is no longer being imported."""
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


if __name__ == "__main__":
    from jetcluster.cli.main import main
    from jetcluster.monitor import start

    start.CERTIFICATE_SECONDS = 3600.0  # type: ignore[misc]  # a look at the clock, on a slow machine between requests
    threading.Thread(target=tell, daemon=True).start()
    sys.exit(main(["serve", "-c", sys.argv[1]]))
