-- The bytes of external payloads. `loose_bytes` is their size until something durable names them.
create table payload (
    namespace text not null,
    reference_id text not null,
    loose_bytes integer,
    data blob not null
);
create unique index payload_idx on payload (namespace, reference_id);
create index payload_loose_idx on payload (loose_bytes) where loose_bytes is not null;
