"""Subscriptions: deliveries in flight, redelivery, acknowledgements and dead letters.

policy.py                how often and how fast records are redelivered
subscription.py          one subscription: what is in flight and what is redelivered
subscriptions.py         all of them                        cursor.py                where one reads
subscription_writer.py   how acknowledgements and dead letters are written
shards.py                which node has which               elsewhere.py             those of other nodes
restoring.py             how one continues on another node or after a start
admin.py                 subscriptions as an operator sees them
deadletters.py           list, replay and purge             deadletter_entries.py    what a dead letter says
"""
