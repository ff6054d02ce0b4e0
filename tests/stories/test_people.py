"""People and runs: our own runner SDK against a real server, on both stores and both transports."""

import asyncio

import pytest

from perdure.sdk import ApiError, App, Client, Context, Run, StepFailedError
from tests.stories.test_runner_sdk import (
    TRANSPORTS,
    Transport,
    connected,
    finished,
    play,
    server,
    started,
)
from tests.support.server import ServerProcess

__all__ = ["server"]

AT_ONCE = 12


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_people_decide_and_judge_and_try_otherwise(
    server: ServerProcess, transport: Transport
) -> None:
    app = App("shop")

    @app.workflow("refund", on="refund.asked")
    async def refund(ctx: Context) -> object:
        model = ctx.fork.model if ctx.fork else "usual"
        asked, other = await asyncio.gather(
            ctx.step.approval("pay", "payout", {"amount": 5}, risk="high", summary="5 EUR"),
            ctx.step.approval("mail", "mail", timeout="1h", escalates_to="boss"),
        )
        await ctx.score("sure", 0.75, comment="so so")
        await ctx.asserts.sequence(["pay", "mail"])
        try:
            await ctx.score("lost", 1, run_id="nobody")
        except StepFailedError as error:
            why = str(error)
        said = await ctx.step.run("say", lambda: f"{model}: {asked.args['amount']}")
        return [said, asked.decided_by, other.is_approved, why]

    async def story() -> None:
        async with transport(app, server) as client:
            run_id = await started(client, "refund.asked", {"id": "A1"})
            pay = await client.until_asked(run_id, "pay")
            mail = await client.until_asked(run_id, "mail")
            run = await until_status(client, run_id, "needs_attention")
            assert run.wait_reason is not None
            assert "payout" in run.wait_reason
            told = await client.decide(pay.id, approve=True, by="ann", args={"amount": 3})
            assert await client.decide(pay.id, approve=True, by="ann", args={"amount": 3}) == told
            with pytest.raises(ApiError) as refused:
                await client.decide(pay.id, approve=False, by="bob")
            assert refused.value.status == 409
            await client.decide(mail.id, approve=False)

            run = await finished(client, run_id)
            assert run.result == ["usual: 3", "ann", False, "there is no run nobody"]
            await client.score(run_id, "liked", True, dedupe_id="once")
            await client.score(run_id, "liked", True, dedupe_id="once")
            scores = await client.scores(run_id)
            assert {(row.name, row.value) for row in scores} == {
                ("liked", 1),
                ("sequence", 1),
                ("sure", 0.75),
            }
            forked = await client.fork(run_id, "say", model="other")
            run = await finished(client, forked.id)
            assert run.result == ["other: 3", "ann", False, "there is no run nobody"]
            assert (run.replay_of, await client.approvals(run_id=run.id)) == (run_id, [])

    play(story)


@pytest.mark.parametrize("server", ["postgres"], indirect=True)
def test_many_at_once_decide_once_and_are_counted_exactly(server: ServerProcess) -> None:
    """On connections of their own, so that both processes get some of them."""
    app = App("shop")

    @app.workflow("ask", on="asked")
    async def ask(ctx: Context) -> object:
        asked = await ctx.step.approval("ok", "ship")
        return [asked.status, asked.decided_by]

    @app.workflow("talk", on="talked")
    async def talk(ctx: Context) -> None:
        await ctx.score("heard", 1, run_id=ctx.event.data)

    async def decides(approval_id: str, name: str) -> str | None:
        async with Client(engine_url=server.url) as client:
            try:
                row = await client.decide(approval_id, approve=len(name) % 2 == 0, by=name)
            except ApiError as error:
                return None if error.status == 409 else str(error)
            return row.decided_by

    async def talks(run_id: str) -> str:
        async with Client(engine_url=server.url) as client:
            sent = await client.send("talked", run_id, session="s")
            assert sent.run_id is not None
            return sent.run_id

    async def story() -> None:
        async with connected(app, server) as client:
            run_id = await started(client, "asked", None)
            asked = await client.until_asked(run_id, "ok")
            names = ["x" * number for number in range(1, AT_ONCE + 1)]
            told = await asyncio.gather(*(decides(asked.id, name) for name in names))
            (winner,) = [name for name in told if name is not None]
            run = await finished(client, run_id)
            assert run.result == ["approved" if len(winner) % 2 == 0 else "denied", winner]

            runs = await asyncio.gather(*(talks(run_id) for _ in range(AT_ONCE)))
            for each in runs:
                assert (await finished(client, each)).status == "succeeded"
            (talked,) = await client.sessions()
            assert (talked.run_count, talked.status_counts) == (AT_ONCE, {"succeeded": AT_ONCE})
            assert len(await client.scores(run_id)) == AT_ONCE
            assert (await client.run(run_id)).score_count == AT_ONCE

    play(story)


def test_a_decision_outlives_the_engine_and_wakes_once(server: ServerProcess) -> None:
    """Killed after the question, and after the answer: neither is lost, and nobody asks twice."""
    app = App("shop")
    woken: list[str] = []

    @app.workflow("order", on="order.created")
    async def order(ctx: Context) -> object:
        def ship() -> str:
            woken.append(ctx.run_id)
            return asked.status

        asked = await ctx.step.approval("ok", "ship", {"n": 1}, timeout="1h")
        if not woken:
            # As late as can be: the engine that took the decision is gone before it hears of this.
            await gone.wait()
        return await ctx.step.run("ship", ship)

    gone = asyncio.Event()

    async def story() -> None:
        async with connected(app, server) as client:
            run_id = await started(client, "order.created", None)
            asked = await client.until_asked(run_id, "ok")
            await until_status(client, run_id, "needs_attention")
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            [again] = await client.approvals(status="pending")
            assert again == asked
            told = await client.decide(asked.id, approve=True, by="ann")
            await asyncio.to_thread(server.kill)
            gone.set()
            await asyncio.to_thread(server.start)

            assert await client.approvals(run_id=run_id) == [told]
            assert await client.decide(asked.id, approve=True, by="ann") == told
            run = await finished(client, run_id)
            assert run.result == "approved"
            steps = await client.steps(run_id)
            assert [(row.name, row.attempt) for row in steps] == [("ok", 1), ("ship", 1)]
            assert set(woken) == {run_id}

    play(story)


async def until_status(client: Client, run_id: str, status: str) -> Run:
    while (run := await client.run(run_id)).status != status:
        pass
    return run
