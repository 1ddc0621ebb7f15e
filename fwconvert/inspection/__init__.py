"""Looking at a run: status, documents, where a token comes from, proof."""
