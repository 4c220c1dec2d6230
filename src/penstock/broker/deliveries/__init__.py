"""Subscriptions: what is in flight, redelivery, acknowledgements and dead letters."""
