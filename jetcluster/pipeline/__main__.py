"""`python -m jetcluster.pipeline JOB ...`, and the entry file for spark-submit."""

import sys
from pathlib import Path

if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]  # run as a file: the modules beside this one must not be importable as top-level ones

from jetcluster.pipeline.main import main

if __name__ == "__main__":
    sys.exit(main())
