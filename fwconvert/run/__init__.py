"""A whole run: decide, hand out, survive, finish."""
