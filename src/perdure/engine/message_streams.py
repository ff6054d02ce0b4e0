"""Operations on message streams: what clients send for the code of a workflow to read."""

from msgspec import Struct

from perdure.core.run.message import accept_message
from perdure.core.run.standalone import refuse_signal
from perdure.engine.operation import Operation
from perdure.engine.receipts import MESSAGE_ACCEPTED, message_key, refuse_rejected
from perdure.engine.world import World
from perdure.store.interface import Instance, Receipt, ReceiptKey


class MessageTaken(Struct, frozen=True):
    """A message that has its position, now or, when `retained`, since before.

    `is_same` tells whether what came under its id now is what came then.
    """

    run_id: str
    workflow_type: str
    command_id: str
    position: int
    retained: bool = False
    is_same: bool = True


class AppendMessage(Operation):
    """Send a message to a stream of a workflow id. Its id is given once in its stream."""

    __slots__ = ("_arguments", "_digest", "_instance", "_message_id", "_stream_name")
    name = "append_message"

    def __init__(
        self,
        instance: Instance,
        *,
        stream_name: str,
        message_id: str,
        arguments: bytes,
        digest: str,
    ) -> None:
        self._instance = instance
        self._stream_name = stream_name
        self._message_id = message_id
        self._arguments = arguments
        self._digest = digest

    def instances(self) -> tuple[Instance, ...]:
        return (self._instance,)

    def receipts(self) -> tuple[ReceiptKey, ...]:
        return (message_key(self._instance, self._stream_name, self._message_id),)

    def keeps_payloads(self, reply: MessageTaken) -> bool:
        # They were put into the message.
        return False

    def decide(self, world: World) -> MessageTaken:
        (key,) = self.receipts()
        known = world.receipts.get(key)
        if known is not None:
            return self._repeat(world, known)
        run = world.require_target(self._instance, None)
        refuse_signal(run, self._stream_name)
        message = accept_message(
            run,
            world.ctx,
            stream_name=self._stream_name,
            message_id=self._message_id,
            arguments=self._arguments,
            digest=self._digest,
        )
        receipt = Receipt(
            self._digest,
            run.run_id,
            message.command_id,
            MESSAGE_ACCEPTED,
            world.ctx.now,
            message.position,
        )
        world.put_receipt(key, receipt)
        world.changed(run)
        return MessageTaken(run.run_id, run.workflow_type, message.command_id, message.position)

    def _repeat(self, world: World, known: Receipt) -> MessageTaken:
        refuse_rejected(known, "message", self._message_id)
        run = world.find_current(self._instance)
        return MessageTaken(
            known.run_id,
            "" if run is None else run.workflow_type,
            known.command_id,
            known.position,
            retained=True,
            is_same=known.digest == self._digest,
        )
