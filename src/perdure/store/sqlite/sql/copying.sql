-- Queries of a copy: every table from end to end, in the form that both stores share.

-- name: find_anything
-- Whether the store holds anything that an empty one does not.
select exists (select 1 from run)
    or exists (select 1 from operation)
    or exists (select 1 from inbox)
    or exists (select 1 from history)
    or exists (select 1 from ready)
    or exists (select 1 from deadline)
    or exists (select 1 from receipt)
    or exists (select 1 from worker)
    or exists (select 1 from record)
    or exists (select 1 from payload)
    or exists (select 1 from stream_item)
    or exists (select 1 from namespace where name <> 'default')

-- name: clear_namespaces
delete from namespace

-- name: give_namespace
select name
  from namespace

-- name: give_run
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, case when closed_at is null then task_owner end, state
  from run

-- name: give_operation
select run_id, sequence, lease_owner, data
  from operation

-- name: give_inbox
select run_id, position, data
  from inbox

-- name: give_history
select run_id, first_sequence, last_sequence, events, digest
  from history

-- name: give_ready
select run_id, place, namespace, queue, kind, name, priority, available_at
  from ready

-- name: give_deadline
select kind, target, due_at
  from deadline

-- name: give_receipt
select namespace, workflow_id, kind, request_id, data, run_id
  from receipt

-- name: give_worker
select namespace, worker_id, data
  from worker

-- name: give_record
select kind, namespace, key, due_at, data
  from record

-- name: give_stream_item
select run_id, stream_name, item_offset, idempotency_key, data
  from stream_item

-- name: give_payload
select namespace, reference_id, loose_bytes, data
  from payload

-- name: take_namespace
insert into namespace (name)
values (:name)

-- name: take_run
insert into run (run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at,
                 status, closed_at, version, task_owner, state)
values (:run_id, :namespace, :workflow_id, :workflow_type, :queue, :run_number, :started_at,
        :status, :closed_at, :version, :task_owner, :state)

-- name: take_operation
insert into operation (run_id, sequence, lease_owner, data)
values (:run_id, :sequence, :lease_owner, :data)

-- name: take_inbox
insert into inbox (run_id, position, data)
values (:run_id, :position, :data)

-- name: take_history
insert into history (run_id, first_sequence, last_sequence, events, digest)
values (:run_id, :first_sequence, :last_sequence, :events, :digest)

-- name: take_ready
insert into ready (run_id, place, namespace, queue, kind, name, priority, available_at)
values (:run_id, :place, :namespace, :queue, :kind, :name, :priority, :available_at)

-- name: take_deadline
insert into deadline (kind, target, due_at)
values (:kind, :target, :due_at)

-- name: take_receipt
insert into receipt (namespace, workflow_id, kind, request_id, data, run_id)
values (:namespace, :workflow_id, :kind, :request_id, :data, :run_id)

-- name: take_worker
insert into worker (namespace, worker_id, data)
values (:namespace, :worker_id, :data)

-- name: take_record
insert into record (kind, namespace, key, due_at, data)
values (:kind, :namespace, :key, :due_at, :data)

-- name: take_stream_item
insert into stream_item (run_id, stream_name, item_offset, idempotency_key, data)
values (:run_id, :stream_name, :item_offset, :idempotency_key, :data)

-- name: take_payload
insert into payload (namespace, reference_id, loose_bytes, data)
values (:namespace, :reference_id, :loose_bytes, :data)
