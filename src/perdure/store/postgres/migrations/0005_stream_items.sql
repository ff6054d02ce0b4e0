-- What runs put out: the items of their streams, each as it is sent.
-- needs: 1
create table perdure.stream_item (
    run_id text collate ucs_basic not null,
    stream_name text collate ucs_basic not null,
    item_offset bigint not null,
    idempotency_key text collate ucs_basic,
    data bytea not null,
    primary key (run_id, stream_name, item_offset)
);
create unique index stream_item_key_idx
    on perdure.stream_item (run_id, stream_name, idempotency_key)
    where idempotency_key is not null;
