"""Tar shards as WebDataset has them: members grouped into samples by their names."""
