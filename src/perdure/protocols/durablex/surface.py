"""The surface of this protocol: plain JSON, errors with one message."""

import msgspec

from perdure.web.message import HttpError, Request, Response

encode = msgspec.json.encode


class DurablexSurface:
    """Requests have no version; the namespace is the one of their key."""

    takes_any_media = True
    """Bodies are JSON whatever their media type says: some clients post them as forms."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def admit(self, request: Request) -> None:
        request.namespace = self._namespace

    def answer(self, status: int, body: object) -> Response:
        return Response(status, encode(body))

    def refuse(self, request: Request, error: HttpError) -> Response:
        # This protocol does not distinguish invalid values from invalid JSON: both are 400.
        status = 400 if error.status == 422 else error.status
        body = {"error": error.message, "message": error.message, "reason": error.reason}
        return Response(status, encode({**error.details, **body}), error.headers)
