"""What stands in for the library's packet core once that is released, so that a connection that has ended may still be asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, cast

if TYPE_CHECKING:
    from qh3._hazmat import QuicConnectionCore


class ReleasedCore:
    """Has nothing to send and nothing in flight, and refuses whatever it is asked to do."""

    bytes_in_flight: Final = 0
    congestion_window: Final = 0
    outstanding_application_packets: Final = ()

    def __init__(self, core: QuicConnectionCore) -> None:
        self.active_path = core.active_path
        self.loss_total = core.loss_total
        self.received_authenticated_packet = core.received_authenticated_packet

    def get_send_buffer_size(self, _stream_id: int | None) -> int:
        return 0

    def get_timer(self) -> None:
        return None

    def can_send_stream(self, _stream_id: int) -> bool:
        return False

    def send_ping(self, _token: int) -> None:
        """Send nothing."""

    def refuse(self, *_: object) -> NoReturn:
        raise RuntimeError("the connection has ended")

    open_stream = send_stream = reset_stream = stop_sending = refuse


def released_core(core: QuicConnectionCore) -> QuicConnectionCore:
    """Return what stands in for a core that is released."""
    return cast("QuicConnectionCore", ReleasedCore(core))
