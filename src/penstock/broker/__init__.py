"""What requests mean, whatever protocol they come from: no protocol and no I/O of its own.

broker.py        puts the parts together                    limits.py        bounds that are shared
topics/          creating, altering, deleting topics        records/         producing: partitions, keys, expiry
groups/          consumer groups: offsets, members, lag     deliveries/      subscriptions, redelivery, dead letters
transactions/    transactions, and staged writes of Spark   idempotence/     producers whose requests are stored once
schemas/         schemas and validation                     schedule/        delayed records
access/          users, roles, ACLs, API keys, audit        cache/           cached values (Felix)
table.py         state as a table over a compacted internal topic
tables.py        the tables that exist, for verification    pipelines.py     what pipeline runs report
cluster.py       the cluster as clients see it              keyed_locks.py   locks by key
part.py          what the parts of a broker share           snapshots.py     snapshots of the whole log

The operations that sessions call are in `operations.py` of a folder, or in the module that is named as the part of the broker.
"""
