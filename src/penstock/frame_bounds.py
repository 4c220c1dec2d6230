"""What one frame of FlyMQ carries at most: bounds of its messages, and ceilings of the settings for what they list.

A broker that held more could not tell its clients of it. The other protocols list less.
"""

from __future__ import annotations

from typing import Final

PAYLOAD_BYTES_MAX: Final = 32 << 20
"""The contract's largest payload; a frame that announces more is refused before any of it is read."""
REPLY_ITEMS_MAX: Final = 1 << 20
"""For any list that a client reads: ten times what a broker holds of anything by default, and fewer than a client has memory for."""
ROLES_MAX: Final = 1_000
"""For a user, a key or an ACL. By default the broker keeps 64 for each user."""
MEMBER_TOPICS_MAX: Final = 1_000
"""That a member of a group subscribes to. By default the broker accepts 100."""
MEMBER_PARTITIONS_MAX: Final = 65_536
"""That a member of a group owns: as many as brokers have, by default and beyond."""
