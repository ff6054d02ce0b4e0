"""Message streams: clients append, and the code of the workflow reads in order."""

import hashlib
import re

from perdure.core import limits
from perdure.core.bounds import Bounds
from perdure.core.payload import Frame, encode
from perdure.core.rejection import InvalidRequest, InvalidStreamName
from perdure.core.run.message_stream import Consumption
from perdure.core.run.reframe import envelope_json, envelope_value, plain_envelope
from perdure.engine.beat import Engine
from perdure.engine.message_streams import AppendMessage, MessageTaken
from perdure.protocols.durable_workflow import bodies
from perdure.protocols.durable_workflow.inputs import read_input
from perdure.protocols.durable_workflow.memos import inline_envelope
from perdure.protocols.durable_workflow.payloads import open_envelope, require_storable
from perdure.protocols.durable_workflow.references import naming
from perdure.protocols.durable_workflow.sizes import require_input_size
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.store.interface import Instance
from perdure.web.message import Request, Response

_NAME = re.compile(rf"[A-Za-z0-9._:-]{{1,{limits.MESSAGE_STREAM_NAME_LENGTH_MAX}}}")


class MessageStreams:
    """Handler of `/api/workflows/{workflow_id}/message-streams/…`."""

    def __init__(self, engine: Engine, surface: ControlSurface, bounds: Bounds) -> None:
        self._engine = engine
        self._bounds = bounds
        self.surface = surface.of("append_message")

    async def append(self, request: Request) -> Response:
        name = request.params["stream_name"]
        if not _NAME.fullmatch(name):
            raise InvalidStreamName(
                "a message stream is named by 1 to 128 letters, digits, dots, colons, "
                "underscores and dashes",
                stream_name=name[:255],
            )
        body = bodies.decode(request.body, bodies.AppendMessageBody)
        instance = Instance(request.namespace, request.params["workflow_id"])
        arguments = await self._arguments(request, instance, body)
        # It becomes a part of another payload, later, where a refusal would be too late.
        require_storable([body.message_id, envelope_value(arguments)], "input")
        operation = AppendMessage(
            instance,
            stream_name=name,
            message_id=body.message_id,
            arguments=arguments,
            digest=hashlib.sha256(arguments).hexdigest()[:32],
        )
        taken: MessageTaken = await self._engine.submit(naming(request, operation))
        answer = {
            "accepted": True,
            "workflow_id": instance.workflow_id,
            "run_id": taken.run_id,
            "workflow_type": taken.workflow_type,
            "stream_name": name,
            "message_id": body.message_id,
            "position": taken.position,
            "outcome": "message_accepted",
            "command_id": taken.command_id,
            "command_status": "accepted",
            "command_source": "control_plane",
            "target_scope": "instance",
            "duplicate": taken.retained,
            "intent_verified": taken.is_same,
        }
        return self.surface.answer(request, 202, answer)

    async def _arguments(
        self, request: Request, instance: Instance, body: bodies.AppendMessageBody
    ) -> bytes:
        """The envelope of an argument list: code would not see anything else."""
        arguments, plain = read_input(body.input, "input")
        require_input_size(request, self._bounds, arguments, plain)
        if arguments is not None:
            # It reaches the code inside of another payload, where no worker would fetch it.
            arguments = await inline_envelope(
                self._engine.store,
                instance.namespace,
                arguments,
                "input",
                bytes_max=self._bounds.payload_bytes_max,
            )
            readable, value = open_envelope(arguments)
            if readable and not isinstance(value, list):
                raise InvalidRequest("input", "must be an envelope of a list of arguments")
            return arguments
        runs = await self._engine.store.read_instance(instance)
        frame = Frame(runs[-1].frame) if runs else Frame.VALUE
        if plain is not None:
            return plain_envelope(plain, frame)
        return envelope_json(encode([], frame))


def read_consumption(body: bodies.StreamReport) -> Consumption | None:
    """What a completion tells about the message streams that its code reads."""
    if not body.message_stream_cursors and not body.message_stream_waits:
        return None
    return Consumption(
        {told.stream_name: told.through_position for told in body.message_stream_cursors or ()},
        {told.stream_name: told.after_position for told in body.message_stream_waits or ()},
    )
