"""The store that the settings name."""

from perdure.clock import Clock
from perdure.server.settings import Settings, is_postgres, sqlite_path
from perdure.store.copies import End
from perdure.store.interface import Store
from perdure.store.postgres.copies import PostgresEnd
from perdure.store.postgres.hints import HintChannel
from perdure.store.postgres.node_channel import NodeChannel
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.copies import SqliteEnd
from perdure.store.sqlite.store import SqliteStore


def make_store(settings: Settings, *, node_id: str, clock: Clock) -> Store:
    """The store of the settings, not yet open."""
    if is_postgres(settings.store):
        pooled = settings.pooler == "transaction"
        return PostgresStore(settings.store, node_id=node_id, clock=clock, pooled=pooled)
    return SqliteStore(sqlite_path(settings.store))


def make_hint_wire(settings: Settings) -> HintChannel | None:
    """The transport of hints between nodes. Behind a pooler it needs the direct URL."""
    url = _direct_url(settings)
    return None if url is None else HintChannel(url)


def make_parcel_wire(settings: Settings, *, node_id: str) -> NodeChannel | None:
    """The transport of messages between nodes, under the same condition."""
    url = _direct_url(settings)
    return None if url is None else NodeChannel(url, node_id)


def _direct_url(settings: Settings) -> str | None:
    if not is_postgres(settings.store):
        return None
    return settings.store_direct or (settings.store if settings.pooler == "none" else None)


def make_end(store: str, *, clock: Clock) -> End:
    """A store as one end of a copy."""
    if is_postgres(store):
        return PostgresEnd(store, clock=clock)
    return SqliteEnd(sqlite_path(store))
