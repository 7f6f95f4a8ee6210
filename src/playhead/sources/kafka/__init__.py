"""Kafka topics: partitions read by offset, the offsets kept in the cursor and nowhere else."""
