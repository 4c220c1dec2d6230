"""The wire protocols. Each folder has numbers and layouts, a pure codec, a session and a client; none knows another."""
