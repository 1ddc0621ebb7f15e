"""Text to ids and back: vocabularies, tokenizers, the fast encoder."""
