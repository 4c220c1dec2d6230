"""FlyMQ: opcodes over TCP, one reply a request, in order."""
