"""RustLog: length-prefixed frames, JSON or binary inside, on one port."""
