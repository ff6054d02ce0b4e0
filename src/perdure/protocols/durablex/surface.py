"""The one family of routes of this protocol: plain JSON, errors with one text."""

import msgspec

from perdure.web.message import HttpError, Request, Response

encode = msgspec.json.encode


class DurablexSurface:
    """No version in requests; the namespace is the one that the key belongs to."""

    takes_any_media = True
    """Bodies are JSON whatever their media type says: some clients post them as forms."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def admit(self, request: Request) -> None:
        request.namespace = self._namespace

    def answer(self, status: int, body: object) -> Response:
        return Response(status, encode(body))

    def refuse(self, request: Request, error: HttpError) -> Response:
        # What a value means is not told from what it looks like: both are bad requests here.
        status = 400 if error.status == 422 else error.status
        body = {"error": error.message, "message": error.message, "reason": error.reason}
        return Response(status, encode({**error.details, **body}), error.headers)
