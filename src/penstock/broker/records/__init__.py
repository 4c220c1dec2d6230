"""Producing: the partition of a record, and runs that are spread over partitions."""
