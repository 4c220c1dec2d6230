"""What the clients of all protocols share: addresses, retry delays, a pipelined connection, the base of the sync clients."""
