"""Start a server on a temporary file, run the SDK's quickstart against it, and show its history.

make demo
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
SDK_ENVIRONMENTS = Path(os.environ.get("PERDURE_SDK_ENVS", ROOT / ".venv-sdk"))
SDK_PYTHON = SDK_ENVIRONMENTS / "2.12.0" / "bin" / "python"
LISTENING = "perdure listening on "


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        store_url = f"sqlite:///{folder}/demo.db"
        with running_server(store_url) as server_url:
            print(f"A server is listening on {server_url}, its store is {store_url}")
            print(f"The quickstart of durable-workflow 2.12.0 says: {greeting(server_url)}")
            show_workflows(server_url)


@contextmanager
def running_server(store_url: str) -> Iterator[str]:
    """`perdure dev` on a free port; its address."""
    command = [sys.executable, "-m", "perdure", "dev", "--host", "127.0.0.1", "--port", "0"]
    server = subprocess.Popen([*command, "--store", store_url], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        if not line.startswith(LISTENING):
            sys.exit(f"The server did not start; it said: {line!r}")
        yield line.removeprefix(LISTENING).strip()
    finally:
        server.terminate()
        server.communicate()


def greeting(server_url: str) -> str:
    """What the quickstart printed."""
    finished = subprocess.run(
        [SDK_PYTHON, ROOT / "examples" / "quickstart.py"],
        env={**os.environ, "DURABLE_WORKFLOW_SERVER_URL": server_url},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return finished.stdout.strip()


def show_workflows(server_url: str) -> None:
    """Every workflow of the server, with the history of its newest run."""
    for run in fetch(server_url, "/api/workflows")["workflows"]:
        workflow_id, run_id = run["workflow_id"], run["run_id"]
        print(f"\n{run['workflow_type']} {workflow_id} is {run['status']}\n")
        history = fetch(server_url, f"/api/workflows/{workflow_id}/runs/{run_id}/history")
        for event in history["events"]:
            print(f"  {event['sequence']:>3}  {event['recorded_at'][11:23]}  {summary(event)}")


def summary(event: dict[str, Any]) -> str:
    """One line about an event: its type and the operation it belongs to."""
    payload = event["payload"]
    told = [event["event_type"]]
    if payload.get("activity_type"):
        told.append(f"{payload['activity_type']} (step {payload['sequence']})")
    return "  ".join(told)


def fetch(server_url: str, path: str) -> Any:
    """Ask the control plane."""
    headers = {"X-Namespace": "default", "X-Durable-Workflow-Control-Plane-Version": "2"}
    with urlopen(Request(server_url + path, headers=headers)) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
