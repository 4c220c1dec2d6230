"""Bytes in, bytes out: listeners, TLS, limits and back-pressure. Knows no protocol; it is handed session factories."""
