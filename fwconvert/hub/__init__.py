"""The Hugging Face hub: listing datasets and downloading files over an unreliable network."""
