"""Which pipeline a run belongs to. Two that have one name and different directories are two pipelines, and only one of them may run.

The broker knows a pipeline by its name, and a run by an id that the run chooses. The id begins with what tells pipelines of one name apart:
where the tables are, and for a directory of this machine, which machine that is.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from hashlib import blake2b

from penstock.broker.pipelines import RUN_VARIABLE
from penstock.errors import ConfigError
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.pipelines.files import is_url
from penstock.spark.pipelines.model import Pipeline


def new_run(pipeline: Pipeline, environment: Mapping[str, str] = os.environ) -> str:
    """Return an id for a run of a pipeline. It ends with a random number, or with the one that the launcher of the run has set."""
    return f"{_identity(pipeline)}.{environment.get(RUN_VARIABLE) or uuid.uuid4().hex}"


def refuse_other_pipeline(pipeline: Pipeline, client: FlyMQClient) -> None:
    """Raises ConfigError if a pipeline of the same name and another directory is running."""
    for each in client.pipelines.list():
        other, dot, _ = each.run.partition(".")
        if each.name == pipeline.name and each.alive and dot and other != _identity(pipeline):
            raise ConfigError(
                f"another pipeline named {pipeline.name} is running, with another directory (run {each.run}): give this one another name, "
                f"or stop that one with penstock pipeline stop {pipeline.name}"
            )


def _identity(pipeline: Pipeline) -> str:
    machine = "" if is_url(pipeline.notes) else socket.gethostname()
    return blake2b(f"{machine}\0{pipeline.notes}".encode(), digest_size=8).hexdigest()
