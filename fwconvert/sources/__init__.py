"""Where text comes from: files here, the hub, parquet, filters."""
