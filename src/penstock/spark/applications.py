"""The application name of a pipeline's writes, under which the sink commits each of its batches once."""

from __future__ import annotations

from hashlib import blake2b

from penstock.spark.sink_options import APPLICATION_BYTES_MAX


def application_name(*parts: str) -> str:
    """The parts, readable where they fit; otherwise a hash of all of them, which tells them apart as well."""
    name = "/".join(parts)
    if len(name.encode()) <= APPLICATION_BYTES_MAX:
        return name
    return "penstock-pipeline/" + blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()
