"""Snapshots of the log for backups and checks, asked for over FlyMQ: messages, layouts, operations, client calls."""
