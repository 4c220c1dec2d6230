"""Storage: the engine contract, the block format, and the engines."""
