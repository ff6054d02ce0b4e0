-- Small durable things that are no runs, each under a key of its kind.
create table record (
    kind text not null,
    namespace text not null,
    key text not null,
    due_at integer,
    data blob not null,
    primary key (kind, namespace, key)
) without rowid;
