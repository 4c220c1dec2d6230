"""What the clients of all protocols share: addresses, retry delays, a pipelined connection, the thread behind the sync twins."""
