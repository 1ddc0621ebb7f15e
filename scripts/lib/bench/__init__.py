"""The benchmark: `scripts/bench`."""
