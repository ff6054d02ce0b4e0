"""A program with a long history and a wait in its middle."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from durable_workflow import workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="long-haul")
class LongHaul:
    """Many markers, a wait, and as many again: more than one page of history."""

    def __init__(self) -> None:
        self.gone = False

    @workflow.signal("go")
    def go(self) -> None:
        self.gone = True

    def run(self, ctx: Context) -> Steps:
        for number in range(600):
            yield ctx.side_effect(lambda number=number: number)
        yield ctx.wait_condition(lambda: self.gone, key="gone")
        done = 0
        for _ in range(4):
            yield ctx.sleep(0)
            done += 10
        return done


WORKFLOWS = (LongHaul,)
ACTIVITIES = ()
