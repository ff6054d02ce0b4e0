-- Small durable things that are no runs, each under a key of its kind.
-- needs: 1
create table perdure.record (
    kind text collate ucs_basic not null,
    namespace text collate ucs_basic not null,
    key text collate ucs_basic not null,
    version bigint not null,
    due_at bigint,
    data bytea not null,
    primary key (kind, namespace, key)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
