"""Programs that read message streams: one by one, in batches, beside other work, over a chain."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from typing import Any

from durable_workflow import workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="teller")
class Teller:
    """Reads one message after the other and tells what they said, with their positions."""

    def run(self, ctx: Context, expected: int) -> Steps:
        stream = ctx.message_stream("orders")
        told = []
        for _ in range(expected):
            message = yield from stream.receive_one()
            told.append([message.message_id, message.position, *message.arguments])
        return told


@workflow.defn(name="baker")
class Baker:
    """Takes what there is in batches and works on each batch."""

    def run(self, ctx: Context, expected: int) -> Steps:
        stream = ctx.message_stream("orders")
        done: list[Any] = []
        while len(done) < expected:
            batch = yield from stream.receive(10)
            baked = yield ctx.schedule_activity(
                "echo-slowly", [[message.arguments[0] for message in batch], 0.05]
            )
            done.extend(baked)
        return done


@workflow.defn(name="two-desks")
class TwoDesks:
    """Reads two streams in turn, whatever the order in which they are filled; a signal between."""

    def __init__(self) -> None:
        self.bells = 0

    @workflow.signal("ring")
    def ring(self) -> None:
        self.bells += 1

    @workflow.query("heard")
    def heard(self) -> int:
        return self.bells

    def run(self, ctx: Context) -> Steps:
        left, right = ctx.message_stream("desk:left"), ctx.message_stream("desk.right")
        first = yield from left.receive_one()
        second = yield from right.receive_one()
        yield ctx.wait_condition(lambda: self.bells >= 2, key="bells")
        third = yield from left.receive_one()
        return [first.arguments, second.arguments, third.arguments]


@workflow.defn(name="courier")
class Courier:
    """Reads so many in each run, then goes on as new; positions go on with it."""

    def run(self, ctx: Context, runs: int, each: int, told: list[Any]) -> Steps:
        stream = ctx.message_stream("orders")
        for _ in range(each):
            message = yield from stream.receive_one()
            told = [*told, [message.position, message.arguments[0]]]
        if runs > 1:
            yield ctx.continue_as_new(runs - 1, each, told)
        return told


@workflow.defn(name="busy-courier")
class BusyCourier:
    """Lets messages gather while it works, so that much is handed over that nobody read."""

    def __init__(self) -> None:
        self.nods = 0

    @workflow.signal("nod")
    def nod(self) -> None:
        self.nods += 1

    def run(self, ctx: Context, runs: int, told: list[Any]) -> Steps:
        orders, notes = ctx.message_stream("orders"), ctx.message_stream("notes")
        yield ctx.schedule_activity("echo-slowly", ["gathering", 0.2])
        for message in (yield from orders.receive(2)):
            told = [*told, message.arguments[0]]
        if runs > 1:
            yield ctx.continue_as_new(runs - 1, told)
        note = yield from notes.receive_one()
        yield ctx.wait_condition(lambda: self.nods >= 2, key="nods")
        return [*told, note.arguments[0]]


WORKFLOWS = (Teller, Baker, TwoDesks, Courier, BusyCourier)
ACTIVITIES = ()
