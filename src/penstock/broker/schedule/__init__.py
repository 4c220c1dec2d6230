"""Delayed records."""
