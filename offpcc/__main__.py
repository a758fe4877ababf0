"""``python -m offpcc`` is the command ``offpcc``."""

import sys

from offpcc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
