"""What Felix requests do: publishes, subscriptions, consumer groups and the cache."""
