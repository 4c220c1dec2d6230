"""Reference pages that are generated from the code: `python -m scripts.reference` writes all of them.

- `cli`: every command, from the Typer application;
- `configuration`: every setting, from the Pydantic models in `penstock.config`;
- `metrics`: every metric, from the families that `/metrics` renders;
- `errors`: every exception, and what each protocol answers for it;
- `python`: the clients, `penstock.testing` and `penstock.spark`, from signatures and docstrings;
- `flymq`: FlyMQ's operations, from their declarations;
- `architecture`: ARCHITECTURE.md as a page of the site.
"""

from __future__ import annotations
