"""Datasets written to disk: snapshots, caches and `save`, and reading them again."""
