import sys

from chaos.alerts.cli import main

sys.exit(main())
