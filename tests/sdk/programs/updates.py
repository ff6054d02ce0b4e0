"""Programs that take updates: plain ones, validated ones, and some in the middle of other work."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from durable_workflow import workflow

from tests.sdk.programs.steps import Context, Steps


@workflow.defn(name="till")
class Till:
    """Takes entries by update and by signal until it is closed."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.closed_by: str | None = None

    @workflow.update("add")
    def add(self, amount: int) -> int:
        if amount < 0:
            raise ValueError("a till takes no negative entries")
        self.entries.append(amount)
        return sum(self.entries)

    @workflow.update("close")
    def close(self, by: str) -> int:
        self.closed_by = by
        return len(self.entries)

    @workflow.signal("note")
    def note(self, amount: int) -> None:
        self.entries.append(amount)

    def run(self, ctx: Context) -> Steps:
        yield ctx.wait_condition(lambda: self.closed_by is not None, key="closed")
        told = yield ctx.schedule_activity("echo", [self.closed_by])
        return {"entries": self.entries, "closed_by": told}


@workflow.defn(name="vault")
class Vault:
    """Validates what it takes against what it has seen so far."""

    def __init__(self) -> None:
        self.unlocked = False
        self.deposits: list[int] = []
        self.sealed = False

    @workflow.signal("unlock")
    def unlock(self) -> None:
        self.unlocked = True

    @workflow.update("deposit")
    def deposit(self, amount: int) -> list[int]:
        self.deposits.append(amount)
        return list(self.deposits)

    @deposit.validator
    def check_deposit(self, amount: int) -> None:
        if not self.unlocked:
            raise ValueError("the vault is locked")
        if amount <= 0:
            raise ValueError("a deposit is positive")

    @workflow.update("seal")
    def seal(self) -> None:
        self.sealed = True

    def run(self, ctx: Context) -> Steps:
        yield ctx.wait_condition(lambda: self.sealed, key="sealed")
        return self.deposits


@workflow.defn(name="errand")
class Errand:
    """Is told things while it works, and reads them afterwards."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @workflow.update("tell")
    def tell(self, what: str) -> int:
        self.told.append(what)
        return len(self.told)

    def run(self, ctx: Context, key: str) -> Steps:
        yield ctx.schedule_activity("wait-for-light", [f"{key}:1"])
        first = list(self.told)
        yield [ctx.schedule_activity("wait-for-light", [f"{key}:2"]), ctx.sleep(0)]
        return {"first": first, "all": self.told}


@workflow.defn(name="relay")
class Relay:
    """Continues as new when it is told to, and hands its count on."""

    def __init__(self) -> None:
        self.passed = False
        self.finished = False
        self.laps = 0

    @workflow.update("pass")
    def pass_on(self) -> int:
        self.passed = True
        return self.laps

    @workflow.update("finish")
    def finish(self) -> int:
        self.finished = True
        return self.laps

    def run(self, ctx: Context, laps: int) -> Steps:
        self.laps = laps
        yield ctx.wait_condition(lambda: self.passed or self.finished, key="baton")
        if self.finished:
            return self.laps
        return ctx.continue_as_new(self.laps + 1)


WORKFLOWS = (Till, Vault, Errand, Relay)
ACTIVITIES = ()
