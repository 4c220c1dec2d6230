"""Consumer groups: members, committed offsets and lag."""
