"""Transactions, and commits that take effect once over all runs of an application."""
