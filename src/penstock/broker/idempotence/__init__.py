"""Idempotent producers: requests that may be sent again, and are stored once.

producers.py     the producers the broker knows, and their writes
shares.py        whose producers make way when there are too many
sequences.py     the state of one producer: which of its requests is new, which was stored before
stored.py        what is kept of both in the log
"""
