"""Programs that record values: side effects, versions, search attributes, memos."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import uuid

from durable_workflow import workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="lottery")
class Lottery:
    """Side effects, of which only the first execution counts."""

    def run(self, ctx: Context) -> Steps:
        ticket = yield ctx.side_effect(lambda: uuid.uuid4().hex)
        told = yield ctx.schedule_activity("echo", [ticket])
        again = yield ctx.side_effect(
            lambda: {"ticket": uuid.uuid4().hex, "wins": [1, 2.5, None, True]}
        )
        return {"same": ticket == told, "ticket": ticket, "again": again}


@workflow.defn(name="clockwork")
class Clockwork:
    """Helpers that look like chance and are not."""

    def run(self, ctx: Context) -> Steps:
        before = [ctx.now().isoformat(), str(ctx.uuid4()), str(ctx.uuid7()), ctx.random().random()]
        told = yield ctx.schedule_activity("echo", [before])
        return {"same": before == told, "before": before, "after": str(ctx.uuid4())}


@workflow.defn(name="versioned")
class Versioned:
    """Changes of a program, chosen once for each run."""

    def run(self, ctx: Context) -> Steps:
        version = yield ctx.get_version("pricing", 1, 2)
        price = yield ctx.schedule_activity("echo", [100 * version])
        patched = yield ctx.patched("rounding")
        yield ctx.deprecate_patch("greeting")
        total = yield ctx.schedule_activity("echo", [price])
        return {"version": version, "patched": patched, "total": total}


@workflow.defn(name="labelled")
class Labelled:
    """Search attributes that change with the run."""

    def run(self, ctx: Context) -> Steps:
        yield ctx.upsert_search_attributes({"OrderStage": "paid"})
        yield ctx.schedule_activity("echo", ["paid"])
        yield ctx.upsert_search_attributes({"OrderStage": "shipped", "Parcels": 2})
        return "labelled"


@workflow.defn(name="annotated")
class Annotated:
    """A memo that changes with the run."""

    def run(self, ctx: Context) -> Steps:
        yield ctx.upsert_memo({"step": "one", "draft": "to be removed"})
        yield ctx.schedule_activity("echo", ["one"])
        yield ctx.upsert_memo({"step": {"number": 2}, "draft": None})
        return "annotated"


WORKFLOWS = (Lottery, Clockwork, Versioned, Labelled, Annotated)
ACTIVITIES = ()
