"""Carry out one task of the benchmark in a process of its own, and say on one line what was done.

python -m bench.task bench.ways.decode '{"files": ["a.parquet"]}'
"""

import json
import sys
from importlib import import_module


def main() -> int:
    """Call the function that the first argument names with what the second holds."""
    module, _, function = sys.argv[1].rpartition(".")
    done = getattr(import_module(module), function)(**json.loads(sys.argv[2]))
    print(json.dumps(done or {}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
