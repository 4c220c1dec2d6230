"""RustLog messages and their bytes, in both directions and both dialects, without I/O."""
