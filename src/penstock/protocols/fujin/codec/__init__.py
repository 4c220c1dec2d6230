"""Fujin commands and replies and their bytes, in both directions, without I/O."""
