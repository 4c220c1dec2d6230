"""Transactions: records that appear together or not at all, and once.

states.py                the states of every transaction, and which may follow which
commit_checks.py         what every commit checks before it appends

Gathered in memory, with offsets of groups:
transactions.py          begin, add, commit, roll back; what is open, and what became of the others
transaction_records.py   the records of one, by partition

Staged in the log, by writers of many processes that repeat their work after a crash:
staging.py               what clients may ask for: begin a run, stage, commit, abort
blocks.py                blocks that clients laid out: what is checked before they are stored
applications.py          runs and epochs: which commits are done, and which runs may make them
tickets.py               what attempts have staged, within bounds, where it waits, and when it ends
publication.py           how a commit publishes them, all or nothing and once
entries.py               what of all this is kept in the log
"""
