"""Settings of model calls."""

from typing import Protocol


class ModelSettings(Protocol):
    """The settings of the server that concern model calls."""

    @property
    def ai_url(self) -> str | None: ...

    @property
    def ai_key(self) -> str | None: ...

    @property
    def ai_model(self) -> str | None: ...
