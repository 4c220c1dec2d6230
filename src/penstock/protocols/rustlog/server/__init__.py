"""What RustLog requests do."""
