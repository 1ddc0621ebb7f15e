"""One order in one process: a source becomes token shards and a receipt."""
