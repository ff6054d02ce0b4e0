"""Payloads that the server makes, in the frame of the worker that will read them."""

from typing import Any

import msgspec

from perdure.core.payload import Frame, PayloadError, decode, encode, frame_of
from perdure.core.run.state import Run


class _Inline(msgspec.Struct):
    blob: str


def plain_list(plain: bytes) -> list[Any]:
    """The argument list of plain JSON: a list as it is, the values of an object."""
    value = msgspec.json.decode(plain)
    if value is None:
        return []
    if isinstance(value, dict):
        return list(value.values())
    assert isinstance(value, list), "plain input is a list or an object"
    return value


def envelope_json(blob: str) -> bytes:
    """An inline envelope around a blob, encoded."""
    return msgspec.json.encode({"codec": "avro", "blob": blob})


def envelope_value(encoded: bytes) -> dict[str, Any]:
    """An encoded envelope as a value, to be nested in another."""
    value: dict[str, Any] = msgspec.json.decode(encoded)
    return value


def plain_envelope(plain: bytes, frame: Frame) -> bytes:
    """Plain JSON input as an encoded envelope in one frame."""
    return envelope_json(encode(plain_list(plain), frame))


def reframed(envelope: bytes, frame: Frame) -> bytes:
    """A payload converted to a frame; unchanged if it cannot be decoded."""
    try:
        blob = msgspec.json.decode(envelope, type=_Inline).blob
        if frame_of(blob) is frame:
            return envelope
        return envelope_json(encode(decode(blob), frame))
    except (msgspec.DecodeError, PayloadError):
        return envelope


def applied_value(arguments: bytes | None, frame: Frame) -> bytes:
    """The result of a signal wait: the one argument of its signal, all of them, or true for none.

    Arguments that the server cannot decode, because they are stored elsewhere, stay unchanged.
    """
    if arguments is None:
        return envelope_json(encode(True, frame))
    try:
        blob = msgspec.json.decode(arguments, type=_Inline).blob
        values = decode(blob)
    except (msgspec.DecodeError, PayloadError):
        return arguments
    if not isinstance(values, list):
        return arguments
    value = values[0] if len(values) == 1 else values if values else True
    return envelope_json(encode(value, frame_of(blob) or frame))


def seal_start(run: Run) -> None:
    """Write the start events again, unchanged: they are final now and get their digest."""
    if not run.unsaved.created and run.task_count == 1 and len(run.events) == run.history_count:
        run.unsaved.rewritten = b",".join(run.events)


def rewrite_start(run: Run) -> None:
    """Put the run's arguments into its start event.

    Only before the first lease: until then nothing but the start events is in history, and no
    worker has seen them.
    """
    assert run.task_count == 1
    assert len(run.events) == run.history_count
    for position, event in enumerate(run.events):
        document = msgspec.json.decode(event)
        if document["event_type"] == "WorkflowStarted":
            document["payload"]["input"] = msgspec.Raw(run.arguments)
            run.events[position] = msgspec.json.encode(document)
    run.history_bytes = run.events_bytes = sum(map(len, run.events))
    if run.unsaved.created:
        run.unsaved.events = list(run.events)
    else:
        run.unsaved.rewritten = b",".join(run.events)
