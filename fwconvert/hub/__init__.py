"""The Hugging Face hub: what it lists, and its files, over a network that may fail."""
