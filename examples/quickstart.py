"""The quickstart of the Durable Workflow Python SDK, unchanged but for the server's address.

.venv-sdk/2.12.0/bin/python examples/quickstart.py     (a server listening on port 8080)
"""

import asyncio
import os
from uuid import uuid4

from durable_workflow import Client, Worker, activity, workflow

SERVER_URL = os.environ.get("DURABLE_WORKFLOW_SERVER_URL", "http://127.0.0.1:8080")


@activity.defn(name="greet")
def greet(name: str) -> str:
    return f"hello, {name}"


@workflow.defn(name="greeter")
class GreeterWorkflow:
    def run(self, ctx, name):
        result = yield ctx.schedule_activity("greet", [name])
        return result


async def main():
    workflow_id = f"greet-{uuid4().hex}"
    async with Client(SERVER_URL, token="dev-token-123", namespace="default") as client:
        worker = Worker(
            client,
            task_queue="python-workers",
            workflows=[GreeterWorkflow],
            activities=[greet],
        )
        handle = await client.start_workflow(
            workflow_type="greeter",
            workflow_id=workflow_id,
            task_queue="python-workers",
            input=["world"],
        )
        await worker.run_until(workflow_id=workflow_id, timeout=30.0)
        result = await client.get_result(handle)
        print(result)  # "hello, world"


if __name__ == "__main__":
    asyncio.run(main())
