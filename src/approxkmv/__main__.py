"""``python -m approxkmv`` is the command ``approxkmv``."""

import sys

from approxkmv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
