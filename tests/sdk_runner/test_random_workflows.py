"""Workflows of any shape, played pass by pass by an engine that finishes steps in any order.

Whatever the shape and the order: no pass hangs, no step is asked for twice, every body runs once,
and the result is the one that the code means.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.sdk import App, Context, workflow
from perdure.sdk.names import hashed
from perdure.sdk.passes import execute
from perdure.sdk.wire import read_invoke
from tests.sdk_runner.contract import check_reply

PASS_SECONDS = 30
PASSES_MAX = 400

Shape = tuple[str, Any]

LEAVES = st.sampled_from(["plain", "async", "slow", "sleep", "event", "child"])
SHAPES = st.recursive(
    LEAVES.map(lambda kind: (kind, None)),
    lambda inner: st.tuples(
        st.sampled_from(
            ["sequence", "gather", "group", "wait", "tasks", "outside", "shield", "early"]
        ),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=10,
)


@dataclass
class Code:
    """A handler of this shape. Each leaf gives its own name."""

    shape: Shape
    ran: list[str] = field(default_factory=list)

    async def handler(self, ctx: Context) -> object:
        return await self._play(ctx, self.shape, "s")

    async def _play(self, ctx: Context, shape: Shape, path: str) -> Any:
        kind, inner = shape
        if inner is None:
            return await self._leaf(ctx, kind, path)
        parts = [(part, f"{path}{number}") for number, part in enumerate(inner)]
        if kind in ("sequence", "outside"):
            results = []
            for part, name in parts:
                if kind == "outside":
                    await asyncio.sleep(0.0005)
                results.append(await self._play(ctx, part, name))
            return results
        branches = [self._play(ctx, part, name) for part, name in parts]
        if kind == "gather":
            return await asyncio.gather(*branches)
        if kind == "shield":
            return await asyncio.gather(*(asyncio.shield(branch) for branch in branches))
        if kind == "group":
            async with asyncio.TaskGroup() as group:
                members = [group.create_task(branch) for branch in branches]
            return [member.result() for member in members]
        tasks = [asyncio.ensure_future(branch) for branch in branches]
        if kind == "wait":
            await asyncio.wait(tasks)
        elif kind == "early":  # begun, then work outside, then awaited
            await asyncio.sleep(0.0005)
        return [await task for task in tasks]

    async def _leaf(self, ctx: Context, kind: str, name: str) -> Any:
        async def body(turns: int) -> str:
            for _ in range(turns):
                await asyncio.sleep(0)
            self.ran.append(name)
            return name

        def plain() -> str:
            self.ran.append(name)
            return name

        if kind == "plain":
            return await ctx.step.run(name, plain)
        if kind in ("async", "slow"):
            return await ctx.step.run(name, body, 1 if kind == "async" else 25)
        if kind == "sleep":
            await ctx.step.sleep(name, 5)
            return name
        if kind == "event":
            return await ctx.step.wait_for_event(name, "e", timeout=5)
        return await ctx.step.run_workflow(name, "child")


def meant(shape: Shape, path: str = "s") -> Any:
    """The result that the code means."""
    _, inner = shape
    if inner is None:
        return path
    return [meant(part, f"{path}{number}") for number, part in enumerate(inner)]


def leaves(shape: Shape, path: str = "s") -> dict[str, str]:
    """The kind of every leaf."""
    kind, inner = shape
    if inner is None:
        return {path: kind}
    parts = [leaves(part, f"{path}{number}") for number, part in enumerate(inner)]
    return {name: kind for part in parts for name, kind in part.items()}


async def drive(code: Code, chance: Random, pends: bool) -> Any:
    """Play passes until the end; parked steps finish one or more at a time, in any order."""
    app = App("shop", [workflow("w")(code.handler)])
    memos: dict[str, dict[str, object]] = {}
    parked: list[str] = []
    asked: list[str] = []
    for _ in range(PASSES_MAX):
        known = dict(memos)
        if pends:
            known |= {hashed(name): {"pending": True} for name in parked}
        body = {"event": {}, "steps": known, "ctx": {"workflow": "w", "runId": "01"}}
        async with asyncio.timeout(PASS_SECONDS):
            reply = await execute(app, read_invoke(json.dumps(body).encode()))
        told = json.loads(reply.body)
        check_reply(reply.status, told)
        if reply.status != 206:
            assert reply.status == 200, told
            assert sorted(asked) == sorted(leaves(code.shape)), "each was asked for, once"
            return told["data"]
        fresh = [opcode for opcode in told["opcodes"] if opcode["name"] not in parked]
        assert len(fresh) == len(told["opcodes"]) or not pends, "asked for again"
        for opcode in fresh:
            asked.append(opcode["name"])
            if opcode["op"] == "StepRun":
                memos[opcode["id"]] = {"data": opcode["data"]}
            else:
                parked.append(opcode["name"])
        if not any(opcode["op"] == "StepRun" for opcode in fresh):
            assert parked, "a pass with nothing to wait for must go on"
            for _ in range(chance.randint(1, len(parked))):
                name = parked.pop(chance.randrange(len(parked)))
                memos[hashed(name)] = {"data": name}
    raise AssertionError("it does not end")


def run(loop: Callable[[Any], Any], shape: Shape, seed: int, pends: bool) -> None:
    code = Code(shape)

    assert loop(drive(code, Random(seed), pends)) == meant(shape)

    bodies = [name for name, kind in leaves(shape).items() if kind in ("plain", "async", "slow")]
    assert sorted(code.ran) == sorted(bodies), "every body ran once"


@settings(max_examples=120)
@given(shape=SHAPES, seed=st.integers(0, 2**32), pends=st.booleans())
def test_any_shape_ends_with_every_step_done_once(shape: Shape, seed: int, pends: bool) -> None:
    run(uvloop.run, shape, seed, pends)


@settings(max_examples=30)
@given(shape=SHAPES, seed=st.integers(0, 2**32))
def test_the_same_on_the_standard_loop(shape: Shape, seed: int) -> None:
    run(asyncio.run, shape, seed, True)
