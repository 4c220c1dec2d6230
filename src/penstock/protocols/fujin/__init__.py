"""Fujin over QUIC: byte commands on client-opened streams, one stream a writer or a reader."""
