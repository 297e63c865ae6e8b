"""`python -m jetcluster`."""

from __future__ import annotations

import sys

from jetcluster.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
