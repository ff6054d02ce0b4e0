-- What runs put out: the items of their streams, each as it is sent.
create table stream_item (
    run_id text not null,
    stream_name text not null,
    item_offset integer not null,
    idempotency_key text,
    data blob not null
);
create unique index stream_item_idx on stream_item (run_id, stream_name, item_offset);
create unique index stream_item_key_idx on stream_item (run_id, stream_name, idempotency_key)
    where idempotency_key is not null;
