"""Records on disk: what is written, what is found, what is due."""

import pytest

from perdure.store.interface import (
    Changes,
    Record,
    RecordChange,
    RecordKey,
    RecordRange,
    Store,
)
from tests.store.keeping import Keep


def key(name: str, kind: str = "thing", namespace: str = "default") -> RecordKey:
    return RecordKey(kind, namespace, name)


def put(keep: Keep, store: Store, *records: tuple[RecordKey, Record | None]) -> None:
    before = keep.run(store.find_records([name for name, _ in records]))
    changes = {name: RecordChange(before.get(name), after) for name, after in records}
    keep.run(store.commit(Changes(records=changes)))


def contents(keep: Keep, store: Store, name: RecordKey) -> tuple[bytes, int | None] | None:
    """What stands under a key, for the beat and for readers."""
    read = keep.run(store.read_record(name))
    found = keep.run(store.find_records([name])).get(name)
    assert read == found
    return None if read is None else (read.data, read.due_at)


def keys(keep: Keep, store: Store, limit: int = 9, **wanted: object) -> list[str]:
    values = {"kind": "thing", "namespace": "default", "limit": limit, **wanted}
    page = RecordRange(**values)  # type: ignore[arg-type]
    read = [name.key for name, _ in keep.run(store.read_records(page))]
    assert [name.key for name in keep.run(store.find_record_keys(page))] == read
    found = keep.run(store.find_record_page(page))
    assert found == keep.run(store.read_records(page))
    return read


def test_a_record_is_written_changed_and_removed(keep: Keep) -> None:
    name, other = key("a"), key("a", kind="other")
    with keep.opened() as store:
        assert contents(keep, store, name) is None
        put(keep, store, (name, Record(b"one")), (other, Record(b"else")))
        assert contents(keep, store, name) == (b"one", None)
        put(keep, store, (name, Record(b"two")))
        assert contents(keep, store, name) == (b"two", None)
        assert contents(keep, store, other) == (b"else", None)
    with keep.opened() as store:
        assert contents(keep, store, name) == (b"two", None)
        put(keep, store, (name, None))
        assert contents(keep, store, name) is None
        assert contents(keep, store, other) == (b"else", None)


@pytest.mark.parametrize("odd", ["a\0b", "\x1b", "ü/\x1f", "Ω" * 200, "\U0010ffff"])
def test_any_text_may_be_a_key(keep: Keep, odd: str) -> None:
    with keep.opened() as store:
        put(keep, store, (key(odd), Record(b"1", due_at=5)))
        assert contents(keep, store, key(odd)) == (b"1", 5)
        assert keep.run(store.load_due(5, 9)) == [key(odd)]


def test_a_page_has_the_records_of_one_kind_and_namespace_in_order(keep: Keep) -> None:
    with keep.opened() as store:
        mine = [(key(name), Record(b"")) for name in ("b", "a", "ab", "c", "ac")]
        others = [(key("a", kind="x"), Record(b"")), (key("a", namespace="x"), Record(b""))]
        put(keep, store, *mine, *others)

        assert keys(keep, store) == ["a", "ab", "ac", "b", "c"]
        assert keys(keep, store, limit=2) == ["a", "ab"]
        assert keys(keep, store, limit=2, after="ab") == ["ac", "b"]
        assert keys(keep, store, prefix="a") == ["a", "ab", "ac"]
        assert keys(keep, store, prefix="a", after="ab") == ["ac"]
        assert keys(keep, store, newest_first=True) == ["c", "b", "ac", "ab", "a"]
        assert keys(keep, store, newest_first=True, after="b", limit=1) == ["ac"]
        assert keys(keep, store, newest_first=True, prefix="a", after="b") == ["ac", "ab", "a"]
        assert keys(keep, store, prefix="z") == []


def test_a_kind_is_found_in_all_namespaces(keep: Keep) -> None:
    with keep.opened() as store:
        mine = [key("b"), key("a"), key("a", namespace="x"), key("a\0", namespace="a")]
        put(keep, store, *((name, Record(name.key.encode(), 5)) for name in mine))
        put(keep, store, (key("a", kind="other"), Record(b"")))

        found = keep.run(store.find_kind("thing", 9))

        assert [(name.namespace, name.key) for name, _ in found] == [
            ("a", "a\0"),
            ("default", "a"),
            ("default", "b"),
            ("x", "a"),
        ]
        assert all((kept.data, kept.due_at) == (name.key.encode(), 5) for name, kept in found)
        assert keep.run(store.find_kind("thing", 2)) == found[:2]
        assert keep.run(store.find_kind("nothing", 9)) == []


def test_a_record_is_due_when_it_says_so(keep: Keep) -> None:
    soon, late, never = key("soon"), key("late"), key("never")
    with keep.opened() as store:
        put(keep, store, (late, Record(b"", 20)), (soon, Record(b"", 10)), (never, Record(b"")))
        assert keep.run(store.find_next_due(0)) == 10
        assert keep.run(store.load_due(9, 9)) == []
        assert keep.run(store.load_due(10, 9)) == [soon]
        put(keep, store, (soon, Record(b"", 30)))
        assert keep.run(store.load_due(25, 9)) == [late]
        put(keep, store, (soon, Record(b"")), (late, None))
        assert keep.run(store.find_next_due(0)) is None
        assert keep.run(store.load_due(99, 9)) == []
