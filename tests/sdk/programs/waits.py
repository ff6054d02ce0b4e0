"""Programs that wait for signals: once, in loops, with time-outs, and for bursts."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from durable_workflow import workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="approval")
class Approval:
    """One wait, one signal."""

    def __init__(self) -> None:
        self.approved_by: str | None = None

    @workflow.signal("approve")
    def approve(self, by: str) -> None:
        self.approved_by = by

    def run(self, ctx: Context) -> Steps:
        yield ctx.wait_condition(lambda: self.approved_by is not None, key="approved")
        return {"approved_by": self.approved_by}


@workflow.defn(name="deadline")
class Deadline:
    """A wait that may time out, and work after it."""

    def __init__(self) -> None:
        self.answered = False

    @workflow.signal("answer")
    def answer(self) -> None:
        self.answered = True

    def run(self, ctx: Context, timeout: float) -> Steps:
        in_time = yield ctx.wait_condition(lambda: self.answered, key="answer", timeout=timeout)
        told = yield ctx.schedule_activity("echo", ["in time" if in_time else "too late"])
        return {"in_time": in_time, "told": told}


@workflow.defn(name="gate")
class Gate:
    """The gate loop: every signal opens it for one pass."""

    def __init__(self) -> None:
        self.ready = False

    @workflow.signal("open")
    def open(self) -> None:
        self.ready = True

    def run(self, ctx: Context) -> Steps:
        passes = 0
        for _ in range(3):
            yield ctx.wait_condition(lambda: self.ready, key="gate")
            self.ready = False
            passes += 1
        return passes


@workflow.defn(name="watchdog")
class Watchdog:
    """Every beat restarts the watch; two silences end it. What must come is waited for longer."""

    def __init__(self) -> None:
        self.alive = False

    @workflow.signal("beat")
    def beat(self) -> None:
        self.alive = True

    def run(self, ctx: Context, expected: int) -> Steps:
        beats = silences = 0
        while silences < 2:
            patience = 600 if beats < expected else 1
            heard = yield ctx.wait_condition(lambda: self.alive, key="alive", timeout=patience)
            self.alive = False
            if heard:
                beats += 1
            else:
                silences += 1
                yield ctx.schedule_activity("echo", [f"silence {silences}"])
        return {"beats": beats, "silences": silences}


@workflow.defn(name="moments")
class Moments:
    """A predicate that is true after one signal and false after two."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @workflow.signal("arrive")
    def arrive(self, name: str) -> None:
        self.names.append(name)

    def run(self, ctx: Context, expected: int) -> Steps:
        yield ctx.wait_condition(lambda: len(self.names) == 1, key="first")
        first = list(self.names)
        yield ctx.wait_condition(lambda: len(self.names) >= expected, key="all")
        return {"first": first, "all": list(self.names)}


@workflow.defn(name="guests")
class Guests:
    """Signals in the helpings in which the code saw them, until enough have come."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @workflow.signal("arrive")
    def arrive(self, name: str) -> None:
        self.names.append(name)

    def run(self, ctx: Context, expected: int) -> Steps:
        helpings: list[list[str]] = []
        while sum(map(len, helpings)) < expected:
            yield ctx.wait_condition(lambda: bool(self.names), key="guest")
            helpings.append(list(self.names))
            self.names.clear()
        return helpings


@workflow.defn(name="two-keys")
class TwoKeys:
    """Two waits for two signals."""

    def __init__(self) -> None:
        self.turned: set[str] = set()

    @workflow.signal("turn")
    def turn(self, key: str) -> None:
        self.turned.add(key)

    def run(self, ctx: Context) -> Steps:
        yield ctx.wait_condition(lambda: "left" in self.turned, key="left")
        yield ctx.wait_condition(lambda: "right" in self.turned, key="right")
        return sorted(self.turned)


@workflow.defn(name="collector")
class Collector:
    """A wait for many signals."""

    def __init__(self) -> None:
        self.items: list[int] = []

    @workflow.signal("add")
    def add(self, item: int) -> None:
        self.items.append(item)

    def run(self, ctx: Context, expected: int) -> Steps:
        yield ctx.wait_condition(lambda: len(self.items) >= expected, key="enough")
        total = yield ctx.schedule_activity("echo", [sum(self.items)])
        return {"items": sorted(self.items), "total": total}


@workflow.defn(name="notebook")
class Notebook:
    """Signals that arrive during a timer, and are read after it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @workflow.signal("note")
    def note(self, text: str) -> None:
        self.notes.append(text)

    def run(self, ctx: Context) -> Steps:
        yield ctx.sleep(8)
        yield ctx.schedule_activity("echo", ["after the timer"])
        return list(self.notes)


@workflow.defn(name="tokens")
class Tokens:
    """Every token allows one activity; tokens may arrive while another is working."""

    def __init__(self) -> None:
        self.tokens = 0

    @workflow.signal("grant")
    def grant(self) -> None:
        self.tokens += 1

    def run(self, ctx: Context, wanted: int) -> Steps:
        for used in range(wanted):
            yield ctx.wait_condition(lambda used=used: self.tokens > used, key=f"token-{used}")
            yield ctx.schedule_activity("echo-slowly", [used, 0.1])
        return self.tokens


WORKFLOWS = (
    Approval,
    Deadline,
    Gate,
    Watchdog,
    Moments,
    Guests,
    TwoKeys,
    Collector,
    Notebook,
    Tokens,
)
ACTIVITIES = ()
