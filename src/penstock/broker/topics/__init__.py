"""Topics.

operations  what can be done with topics, as sessions call it
settings    settings as text, their bounds, and what describes a topic
declared    what the configuration file declares, compared with what exists
quota       the limits on topics and partitions
"""
