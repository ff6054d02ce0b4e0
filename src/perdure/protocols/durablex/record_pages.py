"""Filtered lists of records, newest first, with the cursor of the next page."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from perdure.core.limits import LIST_PAGE_SIZE_MAX
from perdure.engine.records import RecordKind
from perdure.store.interface import Store

T = TypeVar("T", bound=msgspec.Struct)
Row = dict[str, Any]

SCAN_PAGES_MAX = 20
"""Pages read at most in search of rows that pass the filter."""


async def find_rows(
    kind: RecordKind[T],
    store: Store,
    namespace: str,
    show: Callable[[str, T], Row | None],
    *,
    limit: int,
    after: str | None = None,
) -> tuple[list[Row], str | None]:
    """A page of rows, and the key after which the next one begins, if there may be one.

    `show` makes a row of a record, or returns none if the filter excludes it.
    """
    rows: list[Row] = []
    last = after
    for _ in range(SCAN_PAGES_MAX):
        page = await kind.read_page(
            store, namespace, limit=LIST_PAGE_SIZE_MAX, after=after, newest_first=True
        )
        for key, value in page:
            row = show(key, value)
            if row is not None:
                if len(rows) == limit:
                    return rows, last
                rows.append(row)
                last = key
            after = key
        if len(page) < LIST_PAGE_SIZE_MAX:
            return rows, None
    return rows, after
