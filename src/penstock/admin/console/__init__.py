"""The console: `serving.py` serves it, and `assets` holds the page that runs in the browser."""
