"""The cache of keys and values."""
