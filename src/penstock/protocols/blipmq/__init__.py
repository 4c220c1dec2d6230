"""BlipMQ: publish, subscribe, poll, acknowledge."""
