-- Queries of the beat.

-- name: load_runs
-- The rows of the given runs.
select {run_columns}
  from run
 where run_id in (select value from json_each(:run_ids))

-- name: load_operations
-- The open steps of the given runs.
select run_id, sequence, data
  from operation
 where run_id in (select value from json_each(:run_ids))
 order by run_id, sequence

-- name: load_inbox
-- The waiting signals of the given runs.
select run_id, position, data
  from inbox
 where run_id in (select value from json_each(:run_ids))
 order by run_id, position

-- name: load_chunks
-- The whole history of one run.
select events, digest
  from history
 where run_id = :run_id
 order by first_sequence

-- name: load_first_chunk
-- The start of one run's history.
select events, digest
  from history
 where run_id = :run_id
 order by first_sequence
 limit 1

-- name: find_current
-- The newest run of a workflow id.
select run_id
  from run
 where namespace = :namespace
   and workflow_id = :workflow_id
 order by run_number desc
 limit 1

-- name: find_receipt
-- The receipt of a command.
select data
  from receipt
 where namespace = :namespace
   and workflow_id = :workflow_id
   and kind = :kind
   and request_id = :request_id

-- name: load_ready
-- The next tasks of a queue, of the types that pollers wait for.
select run_id, place, name
  from ready
 where namespace = :namespace
   and queue = :queue
   and kind = :kind
   and name in (select value from json_each(:names))
 order by priority, available_at, run_id, place
 limit :most

-- name: load_due
-- The targets of due deadlines.
select kind, target
  from deadline
 where due_at <= :now
 order by due_at, kind, target
 limit :most

-- name: find_next_due
-- The next deadline of all.
select min(due_at)
  from deadline

-- name: find_leased_runs
-- Runs whose workflow task is leased to a worker.
select run_id, 0
  from run
 where task_owner = :owner
   and namespace = :namespace

-- name: find_leased_operations
-- Activities that are leased to a worker.
select operation.run_id, operation.sequence
  from operation
  join run on run.run_id = operation.run_id
 where operation.lease_owner = :owner
   and run.namespace = :namespace

-- name: find_standing_runs
-- Those of the given workflow tasks that are leased.
select run.run_id, 0
  from json_each(:tasks) as named
  join run on run.run_id = json_extract(named.value, '$[0]')
 where json_extract(named.value, '$[1]') = 0
   and run.task_owner is not null

-- name: find_standing_operations
-- Those of the given activities that are leased.
select operation.run_id, operation.sequence
  from json_each(:tasks) as named
  join operation on operation.run_id = json_extract(named.value, '$[0]')
                and operation.sequence = json_extract(named.value, '$[1]')
 where operation.lease_owner is not null

-- name: insert_run
insert into run (run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at,
                 status, closed_at, version, task_owner, state)
values (:run_id, :namespace, :workflow_id, :workflow_type, :queue, :run_number, :started_at,
        :status, :closed_at, :version, :task_owner, :state)

-- name: update_run
update run
   set status = :status, closed_at = :closed_at, version = :version, task_owner = :task_owner,
       state = :state
 where run_id = :run_id

-- name: update_state
-- The columns that change while the status stays, without an update of indexes of the status.
update run
   set version = :version, task_owner = :task_owner, state = :state
 where run_id = :run_id

-- name: put_operation
insert into operation (run_id, sequence, lease_owner, data)
values (:run_id, :sequence, :lease_owner, :data)
on conflict (run_id, sequence) do update
   set lease_owner = excluded.lease_owner, data = excluded.data

-- name: delete_operation
delete from operation
 where run_id = :run_id
   and sequence = :sequence

-- name: put_signal
insert into inbox (run_id, position, data)
values (:run_id, :position, :data)
on conflict (run_id, position) do update set data = excluded.data

-- name: delete_signal
delete from inbox
 where run_id = :run_id
   and position = :position

-- name: insert_chunk
insert into history (run_id, first_sequence, last_sequence, events, digest)
values (:run_id, :first_sequence, :last_sequence, :events, :digest)

-- name: rewrite_first_chunk
-- Only before any worker has received it.
update history
   set events = :events, digest = :digest
 where run_id = :run_id
   and first_sequence = 1

-- name: put_ready
insert into ready (run_id, place, namespace, queue, kind, name, priority, available_at)
values (:run_id, :place, :namespace, :queue, :kind, :name, :priority, :available_at)
on conflict (run_id, place) do update set name = excluded.name, available_at = excluded.available_at

-- name: delete_ready
delete from ready
 where run_id = :run_id
   and place = :place

-- name: put_deadline
insert into deadline (kind, target, due_at)
values (:kind, :target, :due_at)
on conflict (kind, target) do update set due_at = excluded.due_at

-- name: delete_deadline
delete from deadline
 where kind = :kind
   and target = :target

-- name: find_record
select due_at, data
  from record
 where kind = :kind
   and namespace = :namespace
   and key = :key

-- name: find_kind
-- Records of one kind in all namespaces.
select namespace, key, due_at, data
  from record
 where kind = :kind
 order by namespace, key
 limit :most

-- name: put_record
insert into record (kind, namespace, key, due_at, data)
values (:kind, :namespace, :key, :due_at, :data)
on conflict (kind, namespace, key) do update set due_at = excluded.due_at, data = excluded.data

-- name: delete_record
delete from record
 where kind = :kind
   and namespace = :namespace
   and key = :key

-- name: put_payload
insert into payload (namespace, reference_id, loose_bytes, data)
values (:namespace, :reference_id, :loose_bytes, :data)
on conflict (namespace, reference_id) do update
   set loose_bytes = excluded.loose_bytes, data = excluded.data

-- name: keep_payload
update payload
   set loose_bytes = null
 where namespace = :namespace
   and reference_id = :reference_id

-- name: delete_payload
delete from payload
 where namespace = :namespace
   and reference_id = :reference_id

-- name: put_receipt
insert into receipt (namespace, workflow_id, kind, request_id, data, run_id)
values (:namespace, :workflow_id, :kind, :request_id, :data, :run_id)
on conflict (namespace, workflow_id, kind, request_id) do nothing

-- name: renew_receipt
update receipt
   set data = :data, run_id = :run_id
 where namespace = :namespace
   and workflow_id = :workflow_id
   and kind = :kind
   and request_id = :request_id

-- name: put_worker
insert into worker (namespace, worker_id, data)
values (:namespace, :worker_id, :data)
on conflict (namespace, worker_id) do update set data = excluded.data

-- name: delete_worker
delete from worker
 where namespace = :namespace
   and worker_id = :worker_id

-- name: find_items
-- The offsets of items of a stream, by their idempotency keys.
select idempotency_key, item_offset
  from stream_item
 where run_id = :run_id
   and stream_name = :stream_name
   and idempotency_key in (select value from json_each(:keys))

-- name: insert_item
insert into stream_item (run_id, stream_name, item_offset, idempotency_key, data)
values (:run_id, :stream_name, :item_offset, :idempotency_key, :data)

-- name: trim_items
delete from stream_item
 where run_id = :run_id
   and stream_name = :stream_name
   and item_offset < :below

-- name: delete_chunk
delete from history
 where run_id = :run_id
   and first_sequence = :first_sequence

-- name: delete_item
delete from stream_item
 where run_id = :run_id
   and stream_name = :stream_name
   and item_offset = :item_offset

-- name: delete_receipt
delete from receipt
 where namespace = :namespace
   and workflow_id = :workflow_id
   and kind = :kind
   and request_id = :request_id
