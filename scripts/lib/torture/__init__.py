"""Crashes, failed calls and power cuts on purpose: `scripts/torture`."""
