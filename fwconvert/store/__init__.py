"""Where a run lies: its layout, atomic publishing, receipts, manifest and lock."""
