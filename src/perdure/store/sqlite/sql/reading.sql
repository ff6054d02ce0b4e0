-- What readers ask. None of these decides anything.

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
-- How many messages of a run wait behind the place where its inbox begins, and stand before it.
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
-- Behind a cursor, which is also where a list begins; `likely` tells the planner that the other end
-- narrows less.
namespace = :namespace
   and (started_at, run_id) < (:started_at, :run_id)
   and likely(started_at >= :since)
   and (:workflow_type is null or workflow_type = :workflow_type)
   and (:hidden_type is null or workflow_type <> :hidden_type)
   and (:statuses is null or status in (select value from json_each(:statuses)))

-- name: read_list
-- One page of runs, newest first, behind a cursor.
select {run_columns}
  from run
 where {listed}
 order by started_at desc, run_id desc
 limit :most

-- name: read_list_of_ids
-- The same among the runs of some workflow ids.
select {run_columns}
  from run indexed by run_instance_idx
 where {listed}
   and workflow_id in (select value from json_each(:wanted))
 order by started_at desc, run_id desc
 limit :most

-- name: read_list_of_runs
-- The same among some runs.
select {run_columns}
  from run indexed by run_id_idx
 where {listed}
   and run_id in (select value from json_each(:wanted))
 order by started_at desc, run_id desc
 limit :most

-- Lists of push runs. Each order has an index of its own; those that change with a run have one of
-- runs that are over, and what is open is put in its place.

-- part: wanted
-- Where a list begins is what its cursor says; `likely` tells the planner that this narrows less.
namespace = :namespace
   and workflow_id = run_id
   and likely(started_at >= :since)
   and (:app is null or queue = :app)
   and (:workflow_type is null or workflow_type = :workflow_type)
   and (:statuses is null or status in (select value from json_each(:statuses)))
   and (:text is null or instr(workflow_type, :text) > 0 or instr(run_id, :text) > 0
        or instr(queue, :text) > 0)

-- name: read_pushed
-- One page of push runs behind a cursor, by their start.
select {run_columns}
  from run indexed by run_push_idx
 where {wanted}
   and (started_at, run_id) {beyond} (:started_at, :run_id)
 order by started_at {way}, run_id {way}
 limit :most

-- name: read_pushed_by_workflow
select {run_columns}
  from run indexed by run_push_workflow_idx
 where {wanted}
   and (workflow_type, started_at, run_id) {beyond} (:place, :started_at, :run_id)
 order by workflow_type {way}, started_at {way}, run_id {way}
 limit :most

-- name: read_pushed_by_app
select {run_columns}
  from run indexed by run_push_app_idx
 where {wanted}
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
-- By the word that readers know a status by.
with finished as (
    select {run_columns}, shown_status as place
      from run indexed by run_push_status_idx
     where {wanted}
       and closed_at is not null
       and (shown_status, started_at, run_id) {beyond} (:place, :started_at, :run_id)
     order by shown_status {way}, started_at {way}, run_id {way}
     limit :most
), unfinished as (
    select {run_columns}, shown_status as place
      from run indexed by run_push_open_idx
     where {wanted}
       and closed_at is null
       and (shown_status, started_at, run_id) {beyond} (:place, :started_at, :run_id)
     order by shown_status {way}, started_at {way}, run_id {way}
     limit :most
)
{both_in_order}

-- name: read_pushed_by_duration
-- A run that is not over has no duration, which is less than any.
with finished as (
    select {run_columns}, lasted as place
      from run indexed by run_push_duration_idx
     where {wanted}
       and closed_at is not null
       and (lasted, started_at, run_id) {beyond} (:place, :started_at, :run_id)
     order by lasted {way}, started_at {way}, run_id {way}
     limit :most
), unfinished as (
    select {run_columns}, -1 as place
      from run indexed by run_push_open_idx
     where {wanted}
       and closed_at is null
       and (-1, started_at, run_id) {beyond} (:place, :started_at, :run_id)
     order by started_at {way}, run_id {way}
     limit :most
)
{both_in_order}

-- name: read_pushed_figures
-- How many push runs started in which stretch of time, by status, and how long they took.
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
-- The chunks of a history that reach behind a sequence, oldest first.
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
-- Writes so many bytes to see whether the disk takes them.
insert or replace into meta (key, value)
values ('probe', zeroblob(:size_bytes))

-- name: forget_probe
delete from meta
 where key = 'probe'

-- name: load_lease_owners
-- Everybody who holds a lease.
select namespace, task_owner
  from run
 where task_owner is not null
union
select run.namespace, operation.lease_owner
  from operation
  join run on run.run_id = operation.run_id
 where operation.lease_owner is not null

-- name: read_records
-- Records of one kind in the order of their keys, from one key on up to another.
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
-- How much was uploaded that nothing durable names yet. There is an end to it.
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
