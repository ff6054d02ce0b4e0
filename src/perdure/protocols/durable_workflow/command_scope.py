"""What every command may say, and which of it belongs to few of them.

A member that its command does not have of its own may be null or absent and nothing else. The
decoder sees to that, so that nobody has to look at commands once more.
"""

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

if TYPE_CHECKING:
    # Whatever the commands make of it that have it.
    Foreign = Any
else:
    Foreign = None

Codec = Literal["avro"]


class Wire(Struct, tag_field="type", kw_only=True):
    """A command as it is sent; its `type` names it."""

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
