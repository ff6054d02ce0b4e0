"""Message streams: clients append messages, workflow code reads them in order."""

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
from perdure.protocols.durable_workflow.references import with_payloads
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
                "the name of a message stream has 1 to 128 letters, digits, dots, colons, "
                "underscores and dashes",
                stream_name=name[:255],
            )
        body = bodies.decode(request.body, bodies.AppendMessageBody)
        instance = Instance(request.namespace, request.params["workflow_id"])
        arguments = await self._arguments(request, instance, body)
        # It later becomes part of another payload, where it is too late to refuse it.
        require_storable([body.message_id, envelope_value(arguments)], "input")
        operation = AppendMessage(
            instance,
            stream_name=name,
            message_id=body.message_id,
            arguments=arguments,
            digest=hashlib.sha256(arguments).hexdigest()[:32],
        )
        appended: MessageTaken = await self._engine.submit(with_payloads(request, operation))
        answer = {
            "accepted": True,
            "workflow_id": instance.workflow_id,
            "run_id": appended.run_id,
            "workflow_type": appended.workflow_type,
            "stream_name": name,
            "message_id": body.message_id,
            "position": appended.position,
            "outcome": "message_accepted",
            "command_id": appended.command_id,
            "command_status": "accepted",
            "command_source": "control_plane",
            "target_scope": "instance",
            "duplicate": appended.retained,
            "intent_verified": appended.is_same,
        }
        return self.surface.answer(request, 202, answer)

    async def _arguments(
        self, request: Request, instance: Instance, body: bodies.AppendMessageBody
    ) -> bytes:
        """The input as the envelope of an argument list; workflow code can read nothing else."""
        arguments, plain = read_input(body.input, "input")
        require_input_size(request, self._bounds, arguments, plain)
        if arguments is not None:
            # It is delivered inside another payload, where workers do not resolve references.
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
    """The cursors and waits of message streams that a completion reports."""
    if not body.message_stream_cursors and not body.message_stream_waits:
        return None
    return Consumption(
        {entry.stream_name: entry.through_position for entry in body.message_stream_cursors or ()},
        {entry.stream_name: entry.after_position for entry in body.message_stream_waits or ()},
    )
