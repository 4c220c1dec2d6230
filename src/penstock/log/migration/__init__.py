"""Moving a log from one engine to another, with everything it holds.

| module | does |
|---|---|
| `migration` | copies topics in passes, verifies what was copied, and finishes |
| `source` | what is read from: an engine, or whatever shows the log of a running broker |
| `record_checksum` | a checksum of records that does not depend on how they are stored |
| `comparing` | two logs, record by record |
| `state` | how far a migration has come, in a file |
"""
