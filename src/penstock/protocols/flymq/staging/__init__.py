"""Staged records, for writers of many processes whose work is published whole or not at all: messages, layouts, operations,
client calls."""
