"""The command line: one module a command group. Modules import what they need inside their commands, so that help stays fast."""
