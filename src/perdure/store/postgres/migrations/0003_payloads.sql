-- The bytes of external payloads. `loose_bytes` is their size until something durable names them.
-- needs: 1
create table perdure.payload (
    namespace text collate ucs_basic not null,
    reference_id text collate ucs_basic not null,
    loose_bytes bigint,
    data bytea not null,
    primary key (namespace, reference_id)
);
-- Text of base64 is hardly worth compressing, and large.
alter table perdure.payload alter column data set storage external;
create index payload_loose_idx on perdure.payload (loose_bytes) where loose_bytes is not null;
