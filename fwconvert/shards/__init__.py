"""Token shards: cutting, writing, reading, and the files beside them."""
