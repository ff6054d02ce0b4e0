"""Which published release of the SDK is running this process."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from durable_workflow import __version__

from tests.support import absent  # noqa: F401 (what it does, it does when imported)

RELEASE: str = __version__


def number(release: str) -> tuple[int, ...]:
    """The release as numbers, so that releases compare: `2.12.0` is newer than `2.0.0`."""
    return tuple(int(part) for part in release.split("."))


def since(release: str) -> bool:
    """Whether the running release is `release` or newer."""
    return number(RELEASE) >= number(release)
