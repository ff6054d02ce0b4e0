"""The guard of the addresses of runners, built from the settings."""

from perdure.dispatch.egress import Blocked, RunnerGuard, SystemResolver
from perdure.server.settings import Settings, SettingsError


def make_runner_guard(settings: Settings) -> RunnerGuard:
    """The guard of the settings. Raises SettingsError for an entry that is no host or network."""
    try:
        return RunnerGuard(SystemResolver(), settings.runner_allow)
    except Blocked as error:
        raise SettingsError(f"PERDURE_RUNNER_ALLOW: {error}") from None
