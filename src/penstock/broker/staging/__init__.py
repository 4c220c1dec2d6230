"""Staging: records of a writer of many processes, safe but shown to nobody until it says which of them count.

operations.py     what clients may ask for: begin a run, stage, commit, abort; how these belong together
blocks.py         blocks that clients laid out: what is checked before they are stored
applications.py   runs and epochs: which commits are done, and which runs may make them
tickets.py        what attempts have staged, within bounds, and when it ends
store.py          where staged records wait
publication.py    how a commit publishes them, all or nothing and once
entries.py        what of all this is kept in the log
"""
