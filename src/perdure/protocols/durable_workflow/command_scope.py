"""Members that belong to some commands only, refused by the decoder on all others.

A command that does not define such a member accepts it as null or absent. So commands need no
second check after decoding.
"""

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

if TYPE_CHECKING:
    # Commands that have the member override its type.
    Foreign = Any
else:
    Foreign = None

Codec = Literal["avro"]


class Wire(Struct, tag_field="type", kw_only=True):
    """A command on the wire, tagged by its `type`."""

    retry_policy: Foreign = None
    start_to_close_timeout: Foreign = None
    schedule_to_start_timeout: Foreign = None
    schedule_to_close_timeout: Foreign = None
    heartbeat_timeout: Foreign = None
    worker_session: Foreign = None
    execution_timeout_seconds: Foreign = None
    run_timeout_seconds: Foreign = None
    parent_close_policy: Foreign = None
    non_retryable: Foreign = None
    exception: Foreign = None
    delay_seconds: Foreign = None
    timeout_seconds: Foreign = None
    payload_codec: Foreign = None
