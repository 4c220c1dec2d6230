"""The settings of a topic, and what describes one."""
