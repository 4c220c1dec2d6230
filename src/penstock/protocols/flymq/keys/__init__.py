"""API keys of other protocols, managed over FlyMQ: messages, layouts, operations, client calls."""
