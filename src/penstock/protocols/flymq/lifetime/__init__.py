"""Delay, time to live and dead letters: messages, layouts, operations, client calls."""
