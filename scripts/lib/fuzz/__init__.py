"""The fuzzer of everything that reads bytes from outside: `scripts/fuzz`."""
