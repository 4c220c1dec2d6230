"""Transactions: messages, layouts, operations, client calls."""
