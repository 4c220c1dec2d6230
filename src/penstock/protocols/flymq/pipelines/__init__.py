"""What pipelines report and whether they should stop, over FlyMQ: messages, layouts, operations, client calls."""
