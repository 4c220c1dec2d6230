"""QUIC for both sides: what the listeners of `net` and the clients of `clients` share.

`core` and `tls` are the only modules that know the QUIC library; `packets` names what an endpoint needs of the wire; `udp` moves datagrams
in batches; `connection` and `stream` put them together on an event loop, with bounds in both directions.
"""
