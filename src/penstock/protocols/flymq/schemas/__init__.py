"""Schemas: messages, layouts, operations, client calls."""
