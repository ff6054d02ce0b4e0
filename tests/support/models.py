"""A provider of models by hand: it answers chat completions with what a test wants."""

import asyncio
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

Json = dict[str, Any]


def completion(text: str, *, model: str = "m-1", used: tuple[int, int] = (7, 3)) -> Json:
    """What a provider answers."""
    return {
        "object": "chat.completion",
        "model": model,
        "choices": [{"message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": used[0], "completion_tokens": used[1]},
    }


class ModelServer:
    """Answers in order; the last answer stays."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.keys: list[str | None] = []
        self.answers: list[tuple[int, Json]] = [(200, completion("hi"))]
        self.on_asked: Callable[[int], None] = lambda count: None
        """Told of every question before it is answered."""
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1/chat/completions"

    async def open(self) -> "ModelServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    def close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            # Who wanted to ask is gone.
            return writer.close()
        fields = dict(
            line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line
        )
        self.asked.append(json.loads(await reader.readexactly(int(fields["content-length"]))))
        self.keys.append(fields.get("authorization"))
        self.on_asked(len(self.asked))
        status, told = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        body = json.dumps(told).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()


class ThreadedModels:
    """A provider in a thread, for servers in processes of their own."""

    def __init__(self, told: Json) -> None:
        body = json.dumps(told).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody wants to know."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/chat/completions"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
