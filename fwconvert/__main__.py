"""python -m fwconvert."""

import sys

if __name__ == "__main__":
    try:
        from fwconvert.cli import main

        code = main()
    except KeyboardInterrupt:  # Ctrl-C while Python was still importing us.
        code = 130
    sys.exit(code)
