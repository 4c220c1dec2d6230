"""Topics.

settings    settings as text, their bounds, and what describes a topic
changes     altering topics, adding partitions, truncating
declared    what the configuration file declares, compared with what exists
quota       the limits on topics and partitions
"""
