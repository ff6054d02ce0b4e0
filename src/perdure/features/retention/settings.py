"""Settings of retention: how long closed runs are kept."""

from typing import Protocol


class RetentionSettings(Protocol):
    """The settings of the server that concern closed runs."""

    @property
    def history_retention(self) -> int:
        """Of the pull protocol; 0 keeps closed runs for ever."""

    @property
    def run_retention(self) -> int | None: ...

    @property
    def default_namespace(self) -> str: ...
