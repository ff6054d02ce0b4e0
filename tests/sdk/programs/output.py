"""Programs that put out streams beside their history."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from durable_workflow import WorkflowStreamAppendItem, workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="narrator")
class Narrator:
    """Tells one item for every piece of work, then ends its stream."""

    def run(self, ctx: Context, chapters: int) -> Steps:
        for number in range(chapters):
            told = yield ctx.schedule_activity("echo", [f"chapter {number}"])
            item = WorkflowStreamAppendItem(payload={"number": number, "text": told})
            yield ctx.append_workflow_stream("tale", [item])
        yield ctx.close_workflow_stream("tale", retention_seconds=600)
        return chapters


@workflow.defn(name="gossip")
class Gossip:
    """Writes several streams at once, each in its own way, and ends one of them badly."""

    def __init__(self) -> None:
        self.nods = 0

    @workflow.signal("nod")
    def nod(self) -> None:
        self.nods += 1

    def run(self, ctx: Context) -> Steps:
        first = [WorkflowStreamAppendItem(payload=n, item_type="count") for n in range(3)]
        yield ctx.append_workflow_stream("news", first, max_pending_items=50)
        elsewhere = WorkflowStreamAppendItem(
            payload_reference="s3://bucket/large", content_type="text/plain"
        )
        yield ctx.append_workflow_stream("rumours", [elsewhere])
        yield ctx.wait_condition(lambda: self.nods > 0, key="nod")
        yield ctx.append_workflow_stream("news", [WorkflowStreamAppendItem(payload="after")])
        yield ctx.error_workflow_stream("rumours", "not true", retention_seconds=60)
        yield ctx.close_workflow_stream("never-opened")
        return "told"


@workflow.defn(name="chatterbox")
class Chatterbox:
    """Says more than its stream may hold."""

    def run(self, ctx: Context) -> Steps:
        items = [WorkflowStreamAppendItem(payload=n) for n in range(3)]
        yield ctx.append_workflow_stream("talk", items, max_pending_items=2)
        yield ctx.sleep(3600)


WORKFLOWS = (Narrator, Gossip, Chatterbox)
ACTIVITIES = ()
