"""FlyMQ messages and their bytes, in both directions, without I/O."""
