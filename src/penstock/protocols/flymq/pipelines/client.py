"""Pipelines as clients see them: `client.pipelines` of the async client and of its twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.clients.loop_thread import LoopThread
from penstock.protocols.flymq.pipelines import layouts
from penstock.protocols.flymq.pipelines.messages import PipelineDescription, PipelineReport
from penstock.protocols.flymq.wire import Opcode, frame

Ask = Callable[[bytes], Awaitable[bytes]]


class AsyncPipelines:
    """Every request may be sent again where a connection was lost: reporting or stopping twice is doing it once."""

    def __init__(self, read: Ask) -> None:
        self._read = read

    async def report(self, report: PipelineReport) -> bool:
        """Say how a run is doing; returns whether it should stop."""
        return layouts.decode_answer(await self._read(layouts.encode_pipeline_report(report)))

    async def list(self) -> list[PipelineDescription]:
        """The last report of every pipeline, by name."""
        return layouts.decode_pipelines(await self._read(frame(Opcode.PIPELINE_LIST)))

    async def stop(self, pipeline: str) -> bool:
        """Ask the running run of a pipeline to stop; returns whether there is one. Raises EntryNotFound."""
        return layouts.decode_answer(await self._read(layouts.encode_pipeline_stop(pipeline)))


class Pipelines:
    """The same calls as `AsyncPipelines`, each waiting for its answer."""

    def __init__(self, thread: LoopThread, pipelines: AsyncPipelines) -> None:
        self._thread = thread
        self._pipelines = pipelines

    def report(self, report: PipelineReport) -> bool:
        """Say how a run is doing; returns whether it should stop."""
        return self._thread.run(self._pipelines.report(report))

    def list(self) -> list[PipelineDescription]:
        """The last report of every pipeline, by name."""
        return self._thread.run(self._pipelines.list())

    def stop(self, pipeline: str) -> bool:
        """Ask the running run of a pipeline to stop; returns whether there is one. Raises EntryNotFound."""
        return self._thread.run(self._pipelines.stop(pipeline))
