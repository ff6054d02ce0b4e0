-- The first schema. Tables with large rows keep a rowid: in a table without one, a row of more
-- than a quarter page would spill into an overflow page of its own.
create table run (
    run_id text not null,
    namespace text not null,
    workflow_id text not null,
    workflow_type text not null,
    queue text not null,
    run_number integer not null,
    started_at integer not null,
    status text not null,
    closed_at integer,
    version integer not null,
    task_owner text,
    state blob not null
);
create unique index run_id_idx on run (run_id);
create unique index run_instance_idx on run (namespace, workflow_id, run_number);
create index run_started_idx on run (namespace, started_at, run_id);
create index run_task_owner_idx on run (task_owner) where task_owner is not null;

-- Open steps of open runs.
create table operation (
    run_id text not null,
    sequence integer not null,
    lease_owner text,
    data blob not null
);
create unique index operation_idx on operation (run_id, sequence);
create index operation_lease_owner_idx on operation (lease_owner) where lease_owner is not null;

-- Signals that wait for their turn.
create table inbox (
    run_id text not null,
    position integer not null,
    data blob not null
);
create unique index inbox_idx on inbox (run_id, position);

-- History in chunks: what one beat recorded of one run, as it is sent.
create table history (
    run_id text not null,
    first_sequence integer not null,
    last_sequence integer not null,
    events blob not null
);
create unique index history_idx on history (run_id, first_sequence);

-- Tasks that a poller may have now. `place` is 0 for the workflow task, else the step's sequence.
create table ready (
    run_id text not null,
    place integer not null,
    namespace text not null,
    queue text not null,
    kind text not null,
    name text not null,
    priority integer not null,
    available_at integer not null,
    primary key (run_id, place)
) without rowid;
create index ready_queue_idx on ready (namespace, queue, kind, priority, available_at, run_id, place, name);

-- One clock for everything that is due.
create table deadline (
    kind text not null,
    target text not null,
    due_at integer not null,
    primary key (kind, target)
) without rowid;
create index deadline_due_idx on deadline (due_at, kind, target);

-- What was answered to commands that carry a request id.
create table receipt (
    namespace text not null,
    workflow_id text not null,
    kind text not null,
    request_id text not null,
    data blob not null,
    primary key (namespace, workflow_id, kind, request_id)
) without rowid;

create table worker (
    namespace text not null,
    worker_id text not null,
    data blob not null,
    primary key (namespace, worker_id)
) without rowid;

create table namespace (
    name text not null primary key
) without rowid;
insert into namespace (name) values ('default');

create table meta (
    key text not null primary key,
    value text not null
) without rowid;
