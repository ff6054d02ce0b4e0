"""Where the engine is and who we are: by an option, else the environment, else a default.

Both dialects of the environment are read; the Durablex name counts before the Duraton one.
"""

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_ENGINE_URL = "http://localhost:6770"
DEFAULT_APP = "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a runner or a client needs to know of its surroundings."""

    engine_url: str
    app: str
    api_key: str
    signing_key: str
    region: str
    runner: str

    def headers(self) -> dict[str, str]:
        """The headers of every request to the engine."""
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def resolve(
    *,
    engine_url: str | None = None,
    app: str | None = None,
    api_key: str | None = None,
    signing_key: str | None = None,
    region: str | None = None,
    runner: str | None = None,
) -> Settings:
    """The settings from options, the environment and defaults."""
    url = _first(engine_url, "DURABLEX_ENGINE_URL", "DURATON_URL") or DEFAULT_ENGINE_URL
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError(f"{url!r} is not the URL of an engine: http(s)://host:port is")
    return Settings(
        engine_url=url.rstrip("/"),
        app=_first(app, "DURABLEX_APP", "DURATON_APP") or DEFAULT_APP,
        api_key=_first(api_key, "DURABLEX_API_KEY", "DURATON_API_KEY"),
        signing_key=_first(signing_key, "DURABLEX_SIGNING_KEY"),
        region=_first(region, "DURABLEX_REGION", "DURATON_REGION"),
        runner=_first(runner, "DURABLEX_RUNNER"),
    )


def resolve_seconds(option: float | None, variable: str, default_ms: int) -> float:
    """A length from an option in seconds, a variable in milliseconds or a default."""
    if option is not None:
        return option
    try:
        told = float(os.environ.get(variable, ""))
    except ValueError:
        told = 0.0
    return (told if told > 0 else default_ms) / 1000


def resolve_count(option: int | None, variable: str, default: int) -> int:
    """A number from an option, a variable or a default."""
    if option is not None:
        return option
    told = os.environ.get(variable, "")
    return int(told) if told.isascii() and told.isdigit() and int(told) > 0 else default


def _first(option: str | None, *variables: str) -> str:
    if option is not None:
        return option
    return next((value for name in variables if (value := os.environ.get(name))), "")
