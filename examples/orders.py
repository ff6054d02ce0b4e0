"""An order from charge to shipment with perdure's own runner SDK: a runner and a client in one.

.venv/bin/python examples/orders.py     (a server listening on port 8080)
"""

import asyncio
import os

from perdure.sdk import App, Client, Connection, Context, Retry

ENGINE_URL = os.environ.get("DURABLEX_ENGINE_URL", "http://127.0.0.1:8080")

app = App("shop")


@app.workflow("fulfil", on="order.created", retry=Retry(3, delay="100ms"))
async def fulfil(ctx: Context) -> str:
    order = ctx.event.data["id"]
    ctx.log("an order", id=order)
    charge, label = await asyncio.gather(
        ctx.step.run("charge", charge_card, order, ctx.attempt),
        ctx.step.run("label", lambda: f"label for {order}"),
    )
    await ctx.step.sleep("cool off", "200ms")
    packed = await ctx.step.wait_for_event("packed", "order.packed", timeout="1h")
    return f"{charge}, {label}, packed by {packed['by']}"


async def charge_card(order: str, attempt: int) -> str:
    if attempt == 1:
        raise RuntimeError("the bank is busy")
    return f"charged {order}"


async def main() -> None:
    async with (
        Connection(app, engine_url=ENGINE_URL),
        Client(engine_url=ENGINE_URL, app="shop") as client,
    ):
        await client.until_known("fulfil")
        sent = await client.send("order.created", {"id": "A1"})
        assert sent.run_id is not None
        await client.until_step(sent.run_id, "packed")
        await client.send("order.packed", {"by": "Ann"})
        print(await client.result(sent.run_id))
        for step in await client.steps(sent.run_id):
            print(f"  {step.name}: {step.status}, attempt {step.attempt}")


if __name__ == "__main__":
    asyncio.run(main())
