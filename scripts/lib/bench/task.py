"""Run one task of the benchmark in a process of its own, and print its result as a line of JSON.

python -m bench.task bench.limits.decode '{"files": ["a.parquet"]}'
"""

import json
import sys
from importlib import import_module


def main() -> int:
    """Call the function that the first argument names with the JSON object in the second."""
    module, _, function = sys.argv[1].rpartition(".")
    done = getattr(import_module(module), function)(**json.loads(sys.argv[2]))
    print(json.dumps(done or {}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
