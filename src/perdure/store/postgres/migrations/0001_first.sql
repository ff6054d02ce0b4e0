-- The first schema. Why it looks so stands in docs/storage.md.
-- needs: 1
-- Keys sort by code point, as they do in Python and in SQLite.

-- Who a run is. Written when it starts and when it closes, and not in between: the columns that
-- change with every step stand in open_run while the run is open, and here once it is closed.
create table perdure.run (
    run_id text collate ucs_basic not null primary key,
    namespace text collate ucs_basic not null,
    workflow_id text collate ucs_basic not null,
    workflow_type text collate ucs_basic not null,
    queue text collate ucs_basic not null,
    run_number bigint not null,
    started_at bigint not null,
    closed_at bigint,
    status text not null,
    version bigint not null,
    state bytea
) with (fillfactor = 90);
create unique index run_instance_idx on perdure.run (namespace, workflow_id, run_number);
create index run_started_idx on perdure.run (namespace, started_at, run_id);
create index run_open_idx on perdure.run (namespace, started_at, run_id) where closed_at is null;

-- What changes with every step of an open run. Small and hot.
create table perdure.open_run (
    run_id text collate ucs_basic not null primary key,
    status text not null,
    version bigint not null,
    task_owner text collate ucs_basic,
    task_poll text collate ucs_basic,
    state bytea not null
) with (
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);
create index open_run_task_owner_idx on perdure.open_run (task_owner) where task_owner is not null;

-- Open steps of open runs.
create table perdure.operation (
    run_id text collate ucs_basic not null,
    sequence bigint not null,
    lease_owner text collate ucs_basic,
    lease_poll text collate ucs_basic,
    data bytea not null,
    primary key (run_id, sequence)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);
create index operation_lease_owner_idx on perdure.operation (lease_owner)
    where lease_owner is not null;

-- Signals that wait for their turn.
create table perdure.inbox (
    run_id text collate ucs_basic not null,
    position bigint not null,
    data bytea not null,
    primary key (run_id, position)
) with (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- History in chunks: what one beat recorded of one run, as it is sent. Only ever appended to.
-- Run ids begin with the time of the start, so a range of ids is a span of time: what is old
-- enough goes as a whole partition.
create table perdure.history (
    run_id text collate ucs_basic not null,
    first_sequence bigint not null,
    last_sequence bigint not null,
    events bytea not null,
    primary key (run_id, first_sequence)
) partition by range (run_id);
create table perdure.history_other partition of perdure.history default;

-- Tasks that a poller may have now. `place` is 0 for the workflow task, else the step's sequence.
create table perdure.ready (
    run_id text collate ucs_basic not null,
    place bigint not null,
    namespace text collate ucs_basic not null,
    queue text collate ucs_basic not null,
    kind text collate ucs_basic not null,
    name text collate ucs_basic not null,
    priority bigint not null,
    available_at bigint not null,
    primary key (run_id, place)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);
create index ready_queue_idx
    on perdure.ready (namespace, queue, kind, priority, available_at, run_id, place, name);

-- One clock for everything that is due. A node that takes a row up says until when it has it.
create table perdure.deadline (
    kind text collate ucs_basic not null,
    target text collate ucs_basic not null,
    due_at bigint not null,
    taken_until bigint not null default 0,
    primary key (kind, target)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);
create index deadline_due_idx on perdure.deadline (due_at, kind, target);

-- What was answered to commands that carry a request id.
create table perdure.receipt (
    namespace text collate ucs_basic not null,
    workflow_id text collate ucs_basic not null,
    kind text collate ucs_basic not null,
    request_id text collate ucs_basic not null,
    data bytea not null,
    primary key (namespace, workflow_id, kind, request_id)
);

create table perdure.worker (
    namespace text collate ucs_basic not null,
    worker_id text collate ucs_basic not null,
    revision bigint not null,
    changed_at bigint not null,
    data bytea not null,
    primary key (namespace, worker_id)
) with (fillfactor = 70);
create index worker_changed_idx on perdure.worker (changed_at);

create table perdure.namespace (
    name text collate ucs_basic not null primary key
);
insert into perdure.namespace (name) values ('default');

-- What the store says about itself: that a copy into it is not finished.
create table perdure.meta (
    key text collate ucs_basic not null primary key,
    value text not null
);

-- Every process that writes. A process whose connection broke in the middle of a commit raises its
-- epoch here, which that commit, if it is still under way, must end before; then it looks whether
-- its beat is there.
create table perdure.node (
    node_id text collate ucs_basic not null primary key,
    epoch bigint not null,
    seen_at bigint not null
) with (fillfactor = 50);

-- The beats that are on disk. Rows are added and, when they are old, removed, never changed: a row
-- that changes with every beat would be found ever more slowly while a backup runs.
create table perdure.beat (
    node_id text collate ucs_basic not null,
    number bigint not null,
    primary key (node_id, number)
) with (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
