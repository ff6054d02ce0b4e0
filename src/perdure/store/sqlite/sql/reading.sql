-- Queries of readers. Nothing is decided on their results.

-- part: run_columns
run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state

-- name: read_run
select {run_columns}
  from run
 where run_id = :run_id

-- name: read_operations
select sequence, data
  from operation
 where run_id = :run_id
 order by sequence

-- name: count_messages
-- How many messages of a run wait after the start of its inbox, and how many come before it.
select count(*) filter (where position >= :first),
       count(*) filter (where position < :first)
  from inbox
 where run_id = :run_id

-- name: read_instance
-- Every run of a workflow id, oldest first.
select {run_columns}
  from run
 where namespace = :namespace
   and workflow_id = :workflow_id
 order by run_number

-- part: listed
-- After a cursor, which also marks the start of a list; `likely` tells the planner that the other
-- bound is less selective.
namespace = :namespace
   and (started_at, run_id) < (:started_at, :run_id)
   and likely(started_at >= :since)
   and (:workflow_type is null or workflow_type = :workflow_type)
   and (:hidden_type is null or workflow_type <> :hidden_type)
   and (:statuses is null or status in (select value from json_each(:statuses)))

-- name: read_list
-- One page of runs, newest first, after a cursor.
select {run_columns}
  from run
 where {listed}
 order by started_at desc, run_id desc
 limit :most

-- name: read_list_of_ids
-- The same among the runs of the given workflow ids.
select {run_columns}
  from run indexed by run_instance_idx
 where {listed}
   and workflow_id in (select value from json_each(:wanted))
 order by started_at desc, run_id desc
 limit :most

-- name: read_list_of_runs
-- The same among the given runs.
select {run_columns}
  from run indexed by run_id_idx
 where {listed}
   and run_id in (select value from json_each(:wanted))
 order by started_at desc, run_id desc
 limit :most

-- Lists of push runs. Each order has an index of its own. Orders by a value that changes while a
-- run is open have an index of closed runs, and open runs are merged in.

-- part: page_filter
-- The cursor bounds the page; `likely` tells the planner that these filters are less selective.
namespace = :namespace
   and workflow_id = run_id
   and likely(started_at >= :since)
   and (:app is null or queue = :app)
   and (:workflow_type is null or workflow_type = :workflow_type)
   and (:statuses is null or status in (select value from json_each(:statuses)))
   and (:text is null or instr(workflow_type, :text) > 0 or instr(run_id, :text) > 0
        or instr(queue, :text) > 0)

-- name: read_pushed
-- One page of push runs after a cursor, by their start.
select {run_columns}
  from run indexed by run_push_idx
 where {page_filter}
   and (started_at, run_id) {beyond} (:started_at, :run_id)
 order by started_at {way}, run_id {way}
 limit :most

-- name: read_pushed_by_workflow
select {run_columns}
  from run indexed by run_push_workflow_idx
 where {page_filter}
   and (workflow_type, started_at, run_id) {beyond} (:place, :started_at, :run_id)
 order by workflow_type {way}, started_at {way}, run_id {way}
 limit :most

-- name: read_pushed_by_app
select {run_columns}
  from run indexed by run_push_app_idx
 where {page_filter}
   and (queue, started_at, run_id) {beyond} (:place, :started_at, :run_id)
 order by queue {way}, started_at {way}, run_id {way}
 limit :most

-- part: both_in_order
select {run_columns}
  from (select {run_columns}, place from finished
        union all
        select {run_columns}, place from unfinished)
 order by place {way}, started_at {way}, run_id {way}
 limit :most

-- name: read_pushed_by_status
-- By the status name that clients see.
with finished as (
    select {run_columns}, shown_status as place
      from run indexed by run_push_status_idx
     where {page_filter}
       and closed_at is not null
       and (shown_status, started_at, run_id) {beyond} (:place, :started_at, :run_id)
     order by shown_status {way}, started_at {way}, run_id {way}
     limit :most
), unfinished as (
    select {run_columns}, shown_status as place
      from run indexed by run_push_open_idx
     where {page_filter}
       and closed_at is null
       and (shown_status, started_at, run_id) {beyond} (:place, :started_at, :run_id)
     order by shown_status {way}, started_at {way}, run_id {way}
     limit :most
)
{both_in_order}

-- name: read_pushed_by_duration
-- An open run has no duration, which sorts before all others.
with finished as (
    select {run_columns}, lasted as place
      from run indexed by run_push_duration_idx
     where {page_filter}
       and closed_at is not null
       and (lasted, started_at, run_id) {beyond} (:place, :started_at, :run_id)
     order by lasted {way}, started_at {way}, run_id {way}
     limit :most
), unfinished as (
    select {run_columns}, -1 as place
      from run indexed by run_push_open_idx
     where {page_filter}
       and closed_at is null
       and (-1, started_at, run_id) {beyond} (:place, :started_at, :run_id)
     order by started_at {way}, run_id {way}
     limit :most
)
{both_in_order}

-- name: read_pushed_figures
-- How many push runs started in each interval, by status, and their durations.
select started_at / :step, status, count(*), sum(closed_at - started_at),
       max(closed_at - started_at)
  from run
 where namespace = :namespace
   and workflow_id = run_id
   and started_at >= :since
   and (:app is null or queue = :app)
   and (:workflow_type is null or workflow_type = :workflow_type)
 group by 1, 2

-- name: read_chunks
-- The chunks of a history that reach beyond a sequence, oldest first.
select first_sequence, last_sequence, events, digest
  from history
 where run_id = :run_id
   and first_sequence >= (select coalesce(max(first_sequence), 1)
                            from history
                           where run_id = :run_id
                             and first_sequence <= :after + 1)
 order by first_sequence

-- name: read_last_chunk
select events, digest
  from history
 where run_id = :run_id
 order by first_sequence desc
 limit 1

-- name: load_workers
select data
  from worker
 order by namespace, worker_id

-- name: load_namespaces
select name
  from namespace
 order by name

-- name: add_namespace
insert into namespace (name)
values (:name)
    on conflict do nothing

-- name: load_ready_names
select distinct namespace, queue, kind, name
  from ready

-- name: check
select 1

-- name: probe
-- Writes a number of bytes, to test whether the disk accepts them.
insert or replace into meta (key, value)
values ('probe', zeroblob(:size_bytes))

-- name: forget_probe
delete from meta
 where key = 'probe'

-- name: load_lease_owners
-- All lease owners.
select namespace, task_owner
  from run
 where task_owner is not null
union
select run.namespace, operation.lease_owner
  from operation
  join run on run.run_id = operation.run_id
 where operation.lease_owner is not null

-- name: read_records
-- Records of one kind in the order of their keys, within bounds.
select key, due_at, data
  from record
 where kind = :kind
   and namespace = :namespace
   and key >= :first
   and key > :above
   and key < :below
 order by key {way}
 limit :most

-- name: read_payload
select data
  from payload
 where namespace = :namespace
   and reference_id = :reference_id

-- name: read_loose_payloads
-- The number and size of uploaded payloads that are not referenced yet, up to a limit.
select count(*), coalesce(sum(loose_bytes), 0)
  from payload
 where loose_bytes is not null

-- name: read_items
-- A page of a stream.
select item_offset, data
  from stream_item
 where run_id = :run_id
   and stream_name = :stream_name
   and item_offset >= :first
   and item_offset < :until
 order by item_offset
 limit :most
