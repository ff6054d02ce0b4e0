"""Start one standalone activity, wait for its end and tell how it was, as a line of JSON.

<sdk python> -m tests.sdk.job --server URL --queue QUEUE
"""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found"

import argparse
import asyncio
import json

from durable_workflow import Client

from tests.sdk.sdk_harness import GLANCE, PATIENCE, complete_history


async def work(server: str, queue: str) -> None:
    async with Client(server, token="perdure") as client:
        handle = await client.start_activity(
            activity_type="greet",
            task_queue=queue,
            input=["you"],
            retry_policy={"max_attempts": 5, "backoff_seconds": [0]},
        )
        result = await handle.result(poll_interval=GLANCE, timeout=PATIENCE)
        seen = await handle.describe()
        events = await complete_history(client, handle.activity_id, handle.workflow_run_id)
        kinds = [event["event_type"] for event in events]
        told = {"result": result, "attempts": seen.attempt_count, "kinds": kinds}
        print(json.dumps(told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--queue", required=True)
    options = parser.parse_args()
    asyncio.run(work(options.server, options.queue))


if __name__ == "__main__":
    main()
