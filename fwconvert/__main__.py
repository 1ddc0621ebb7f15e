"""python -m fwconvert."""

import sys

from fwconvert.cli import main

if __name__ == "__main__":
    sys.exit(main())
