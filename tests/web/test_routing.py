"""Finding routes by their segments."""

import pytest

from perdure.web.message import HttpError, Request, Response, request_for
from perdure.web.routing import PUBLIC, Route, Router
from tests.web.floor import PlainSurface


async def handler(request: Request) -> Response:
    return Response(200, b"{}")


def a_router(*routes: str) -> Router:
    surface = PlainSurface()
    table = [route.split(" ") for route in routes]
    return Router([Route(method, path, PUBLIC, surface, handler) for method, path in table])


ROUTER = a_router(
    "GET /runs",
    "POST /runs",
    "GET /runs/{run}",
    "POST /runs/poll",
    "POST /runs/{run}/stop",
    "POST /runs/{run}/signal/{name}",
    "DELETE /runs/{run}",
)


@pytest.mark.parametrize(
    ("method", "target", "path", "params"),
    [
        ("GET", "/runs", "/runs", {}),
        ("GET", "/runs?page=2", "/runs", {}),
        ("POST", "/runs/poll", "/runs/poll", {}),
        ("GET", "/runs/poll", "/runs/{run}", {"run": "poll"}),
        ("GET", "/runs/a.b_c:d-e", "/runs/{run}", {"run": "a.b_c:d-e"}),
        ("GET", "/runs/a%2Fb", "/runs/{run}", {"run": "a/b"}),
        ("GET", "/runs/a%2fb%20c%3F", "/runs/{run}", {"run": "a/b c?"}),
        ("GET", "/runs/%C3%A9", "/runs/{run}", {"run": "é"}),
        ("GET", "/runs/100%", "/runs/{run}", {"run": "100%"}),
        ("POST", "/runs/stop/stop", "/runs/{run}/stop", {"run": "stop"}),
        ("POST", "/runs/a%2Fstop/stop", "/runs/{run}/stop", {"run": "a/stop"}),
        ("POST", "/runs/a/signal/b%2Fc", "/runs/{run}/signal/{name}", {"run": "a", "name": "b/c"}),
    ],
)
def test_a_request_finds_its_route_and_decoded_parameters(
    method: str, target: str, path: str, params: dict[str, str]
) -> None:
    request = request_for(method, target.encode(), {})

    route = ROUTER.find(request)

    assert (route.method, route.path) == (method, path)
    assert request.params == params


@pytest.mark.parametrize(
    "target",
    ["/", "/other", "/runs//stop", "/runs/a/b/c/d", "/runs%2Fa", "/runs/%FF", "/runs/%ED%A0%80"],
)
def test_a_path_that_leads_nowhere_is_404(target: str) -> None:
    with pytest.raises(HttpError) as refusal:
        ROUTER.find(request_for("GET", target.encode(), {}))
    assert (refusal.value.status, refusal.value.reason) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("PUT", "/runs", b"GET, HEAD, POST"),
        ("PUT", "/runs/a", b"DELETE, GET, HEAD"),
        ("PUT", "/runs/poll", b"DELETE, GET, HEAD, POST"),
        ("GET", "/runs/a/stop", b"POST"),
    ],
)
def test_another_method_of_a_path_is_405_and_names_those_that_work(
    method: str, target: str, allow: bytes
) -> None:
    with pytest.raises(HttpError) as refusal:
        ROUTER.find(request_for(method, target.encode(), {}))
    assert (refusal.value.status, refusal.value.reason) == (405, "method_not_allowed")
    assert refusal.value.headers == ((b"allow", allow),)
