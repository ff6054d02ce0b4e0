"""A runner process for the push measurements.

python -m bench.runner --engine URL --over connect|serve
"""

import argparse
import time

from perdure.sdk import App, Context, run_connected, run_server

APP = "bench"
FAN_WIDTH = 100

app = App(APP)


def nothing() -> int:
    return 1


@app.workflow("one", on="bench.one")
async def one(ctx: Context) -> int:
    return int(await ctx.step.run("step", nothing))


@app.workflow("ten", on="bench.ten")
async def ten(ctx: Context) -> int:
    total = 0
    for number in range(10):
        total += await ctx.step.run(f"step {number}", nothing)
    return total


@app.workflow("long", on="bench.long")
async def long(ctx: Context) -> list[float]:
    """The moments at which its steps were done."""
    return [
        await ctx.step.run(f"step {number}", time.perf_counter)
        for number in range(ctx.event.data["steps"])
    ]


@app.workflow("waiter", on="bench.wait")
async def waiter(ctx: Context) -> float:
    """The moment at which it was woken."""
    where = f"event.data.id == '{ctx.event.data['id']}'"
    await ctx.step.wait_for_event("wake", "bench.wake", timeout="10m", where=where)
    return float(await ctx.step.run("woken", time.perf_counter))


@app.workflow("sink", on="bench.sink")
async def sink(ctx: Context) -> None:
    return None


def _fan(number: int) -> None:
    @app.workflow(f"fan {number}", on="bench.fan")
    async def member(ctx: Context) -> int:
        return int(await ctx.step.run("step", nothing))


for _number in range(FAN_WIDTH):
    _fan(_number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--over", choices=("connect", "serve"), required=True)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.over == "connect":
        run_connected(app, engine_url=options.engine, runner="bench")
    else:
        url = f"http://127.0.0.1:{options.port}/invoke"
        run_server(app, port=options.port, url=url, engine_url=options.engine, runner="bench")


if __name__ == "__main__":
    main()
