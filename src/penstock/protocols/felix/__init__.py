"""Felix over QUIC: framed JSON and binary batches, subscriptions on streams the server opens, and a cache."""
