"""What a Fujin stream does: writers, readers, and how records are settled."""
