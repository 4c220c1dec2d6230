"""A QUIC server without a broker: takes what it is sent and says how much it was, or sends as much as it is asked for.

Reads a job on its standard input, prints its port and the certificate to trust, and serves until it is terminated. The first byte of a
stream says what is wanted: `>` and then bytes to be counted, or `<` and the number of bytes to send.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from penstock.clock import SystemClock
from penstock.net.certificates import own_certificate
from penstock.net.limits import QuicLimits
from penstock.net.quic import QuicListener
from penstock.net.quic_session import QuicConnection, Stream
from penstock.net.quic_tls import quic_server_tls

CHUNK = bytes(256 * 1024)


class SinkJob(msgspec.Struct):
    directory: str
    datagram_bytes: int


class SinkStream:
    """Implements `penstock.net.quic_session.StreamSession`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._start = b""
        self._count = 0
        self._to_send = 0

    def receive(self, data: bytes) -> None:
        if len(self._start) < 16:
            self._start += data[:16]
        self._count += len(data)

    def ended(self) -> None:
        if self._start[:1] == b"<":
            self._to_send = int(self._start[1:])
            self.resume()
        else:
            self._stream.send(str(self._count).encode(), end=True)

    def resume(self) -> None:
        while self._to_send > 0 and self._stream.writable:
            self._to_send -= len(CHUNK)
            self._stream.send(CHUNK, end=self._to_send <= 0)

    def aborted(self, code: int) -> None:
        pass

    def closed(self) -> None:
        pass


class Sink:
    """Implements `penstock.net.quic_session.QuicSession`."""

    def __init__(self, connection: QuicConnection) -> None:
        pass

    def stream_opened(self, stream: Stream) -> SinkStream:
        return SinkStream(stream)

    def stopping(self) -> None:
        pass

    def closed(self) -> None:
        pass


async def serve(job: SinkJob) -> None:
    files = own_certificate(Path(job.directory), SystemClock())
    limits = QuicLimits(datagram_bytes=job.datagram_bytes)
    listener = QuicListener("sink", "127.0.0.1:0", Sink, quic_server_tls(files.cert, files.key), limits)
    await listener.start()
    print(listener.address.rpartition(":")[2], files.cert, flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await listener.stop(0)


if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(sys.stdin.buffer.read(), type=SinkJob)))
