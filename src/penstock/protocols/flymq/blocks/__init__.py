"""Reading by blocks, for readers that decode columns themselves and share their work out by bytes: messages, layouts, operations,
client calls."""
