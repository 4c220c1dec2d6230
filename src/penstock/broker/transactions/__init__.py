"""Transactions: records and committed offsets that are written together or not at all.

transactions.py          begin, add, commit, roll back; what is open, and what became of the others
transaction_records.py   the records of one, by partition
"""
