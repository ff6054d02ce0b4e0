"""The Serve transport as a WSGI application."""

import io
import json
import threading
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from perdure.sdk import App, Context, Endpoint, WsgiEndpoint, workflow
from perdure.sdk.limits import INVOKE_BYTES_MAX
from perdure.sdk.signature import sign
from tests.sdk_runner.contract import check_reply
from tests.sdk_runner.played import body_of

NOW_SECONDS = 1718900000


async def echo(ctx: Context) -> object:
    return await ctx.step.run("echo", lambda: ctx.event.data)


def an_endpoint(**options: Any) -> WsgiEndpoint:
    app = App("shop", [workflow("echo")(echo)])
    return WsgiEndpoint(
        Endpoint(
            app,
            url="http://here/invoke",
            engine_url="http://127.0.0.1:1",
            retry_seconds=60,
            clock=lambda: NOW_SECONDS * 1000,
            **options,
        )
    )


def asked(endpoint: WsgiEndpoint, body: bytes, **more: str) -> tuple[int, Any]:
    """The answer to one request, held against the rules of WSGI."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST",
        "QUERY_STRING": "",
        "CONTENT_LENGTH": str(len(body)),
        "CONTENT_TYPE": "application/json",
        "wsgi.input": io.BytesIO(body),
        **more,
    }
    setup_testing_defaults(environ)
    told: list[str] = []

    def start_response(status: str, headers: object, error: object = None) -> Any:
        told.append(status)

    answer = validator(endpoint)(environ, start_response)
    text = b"".join(answer)
    answer.close()  # type: ignore[attr-defined]
    status = int(told[0].split()[0])
    check_reply(status, json.loads(text))
    return status, json.loads(text)


def test_threads_of_a_server_share_the_loop_of_the_runner() -> None:
    endpoint = an_endpoint()
    endpoint.start()
    try:
        answers: list[Any] = [None] * 8

        def ask(number: int) -> None:
            body = json.dumps(body_of("echo", data=number)).encode()
            answers[number] = asked(endpoint, body)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [body["opcodes"][0]["data"] for _, body in answers] == list(range(8))
        assert {status for status, _ in answers} == {206}
    finally:
        endpoint.stop()


def test_requests_are_judged_as_by_the_other_servers() -> None:
    body = json.dumps(body_of("echo")).encode()
    signed = sign("key", body, NOW_SECONDS)
    endpoint = an_endpoint(signing_key="key")
    assert asked(endpoint, body)[0] == 503
    endpoint.start()
    endpoint.start()  # once is enough
    try:
        assert asked(endpoint, body, HTTP_X_DURABLEX_SIGNATURE=signed)[0] == 206
        assert asked(endpoint, body)[0] == 401
        assert asked(endpoint, body, HTTP_X_DURABLEX_PROTOCOL="2")[0] == 400
        assert asked(endpoint, b"", REQUEST_METHOD="GET")[0] == 405
        assert asked(endpoint, b"", CONTENT_LENGTH=str(INVOKE_BYTES_MAX + 1))[0] == 413
    finally:
        endpoint.stop()
        endpoint.stop()


@pytest.mark.parametrize("length", ["", "0"])
def test_no_body_is_no_invoke(length: str) -> None:
    endpoint = an_endpoint()
    endpoint.start()
    try:
        assert asked(endpoint, b"", CONTENT_LENGTH=length)[0] == 400
    finally:
        endpoint.stop()
