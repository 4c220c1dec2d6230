"""What operators look at: health, metrics, over HTTP."""
