"""Parquet files and frames in memory, through pyarrow."""
