-- The parts of a commit. One beat is one statement, composed of the parts that it needs: `gate`
-- locks the rows that the beat decided on and checks that they are unchanged; every other part
-- writes only if they are. So a lost race writes nothing, and no part ever waits for another node.

-- name: whole
with {holds},
gate as (select {checks} as ok),
{writes}
select gate.ok, (select ok from fence_ok) as fenced
  from gate

-- name: fence
fence as (
    select node.node_id
      from perdure.node
     where node.node_id = :node_id::text
       and node.epoch = :epoch::bigint
       for share
),
fence_ok as (select count(*) = 1 as ok from fence)

-- name: hold_open
held_open as (
    select open_run.run_id
      from unnest(:run_ids::text[], :versions::bigint[]) as ids (run_id, version)
      join perdure.open_run
        on open_run.run_id = ids.run_id
       and open_run.version = ids.version
       for update of open_run skip locked
),
held_open_ok as (select count(*) = cardinality(:run_ids::text[]) as ok from held_open)

-- name: hold_closed
held_closed as (
    select run.run_id
      from unnest(:run_ids::text[], :versions::bigint[]) as ids (run_id, version)
      join perdure.run
        on run.run_id = ids.run_id
       and run.version = ids.version
       for update of run skip locked
),
held_closed_ok as (select count(*) = cardinality(:run_ids::text[]) as ok from held_closed)

-- name: hold_workers
held_workers as (
    select worker.worker_id
      from unnest(:namespaces::text[], :worker_ids::text[], :revisions::bigint[])
        as ids (namespace, worker_id, revision)
      join perdure.worker
        on worker.namespace = ids.namespace
       and worker.worker_id = ids.worker_id
       and worker.revision = ids.revision
       for update of worker skip locked
),
held_workers_ok as (select count(*) = cardinality(:worker_ids::text[]) as ok from held_workers)

-- name: hold_records
held_records as (
    select record.key
      from unnest(:kinds::text[], :namespaces::text[], :keys::text[], :versions::bigint[])
        as ids (kind, namespace, key, version)
      join perdure.record
        on record.kind = ids.kind
       and record.namespace = ids.namespace
       and record.key = ids.key
       and record.version = ids.version
       for update of record skip locked
),
held_records_ok as (select count(*) = cardinality(:keys::text[]) as ok from held_records)

-- name: hold_new
-- Missing rows cannot be locked: if two nodes open the same id, the unique index admits one.
held_new_ok as (
    select count(run.run_id) = 0 as ok
      from unnest(:namespaces::text[], :workflow_ids::text[]) as ids (namespace, workflow_id)
      join perdure.run
        on run.namespace = ids.namespace
       and run.workflow_id = ids.workflow_id
)

-- name: note_beat
note_beat as (
    insert into perdure.beat (node_id, number)
    select :node_id::text, :number::bigint
     where (select ok from gate)
)

-- name: insert_run
insert_run as (
    insert into perdure.run (run_id, namespace, workflow_id, workflow_type, queue, run_number,
                             started_at, status, closed_at, version, state)
    select rows.run_id, rows.namespace, rows.workflow_id, rows.workflow_type, rows.queue,
           rows.run_number, rows.started_at, rows.status, rows.closed_at, rows.version, rows.state
      from unnest(:run_ids::text[], :namespaces::text[], :workflow_ids::text[],
                  :workflow_types::text[], :queues::text[], :run_numbers::bigint[],
                  :started_ats::bigint[], :statuses::text[], :closed_ats::bigint[],
                  :versions::bigint[], :states::bytea[])
        as rows (run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at,
                 status, closed_at, version, state)
     where (select ok from gate)
)

-- name: insert_open
insert_open as (
    insert into perdure.open_run (run_id, status, version, task_owner, task_poll, state)
    select rows.run_id, rows.status, rows.version, rows.task_owner, rows.task_poll, rows.state
      from unnest(:run_ids::text[], :statuses::text[], :versions::bigint[], :owners::text[],
                  :polls::text[], :states::bytea[])
        as rows (run_id, status, version, task_owner, task_poll, state)
     where (select ok from gate)
)

-- name: update_open
update_open as (
    update perdure.open_run
       set status = rows.status, version = rows.version, task_owner = rows.task_owner,
           task_poll = rows.task_poll, state = rows.state
      from unnest(:run_ids::text[], :statuses::text[], :versions::bigint[], :owners::text[],
                  :polls::text[], :states::bytea[])
        as rows (run_id, status, version, task_owner, task_poll, state)
     where open_run.run_id = rows.run_id
       and (select ok from gate)
)

-- name: delete_open
delete_open as (
    delete from perdure.open_run
     using unnest(:run_ids::text[]) as ids (run_id)
     where open_run.run_id = ids.run_id
       and (select ok from gate)
)

-- name: close_run
close_run as (
    update perdure.run
       set status = rows.status, closed_at = rows.closed_at, version = rows.version,
           state = rows.state
      from unnest(:run_ids::text[], :statuses::text[], :closed_ats::bigint[], :versions::bigint[],
                  :states::bytea[])
        as rows (run_id, status, closed_at, version, state)
     where run.run_id = rows.run_id
       and (select ok from gate)
)

-- name: put_operation
put_operation as (
    insert into perdure.operation (run_id, sequence, lease_owner, lease_poll, data)
    select rows.run_id, rows.sequence, rows.lease_owner, rows.lease_poll, rows.data
      from unnest(:run_ids::text[], :sequences::bigint[], :owners::text[], :polls::text[],
                  :data::bytea[])
        as rows (run_id, sequence, lease_owner, lease_poll, data)
     where (select ok from gate)
    on conflict (run_id, sequence) do update
       set lease_owner = excluded.lease_owner, lease_poll = excluded.lease_poll,
           data = excluded.data
)

-- name: delete_operation
delete_operation as (
    delete from perdure.operation
     using unnest(:run_ids::text[], :sequences::bigint[]) as ids (run_id, sequence)
     where operation.run_id = ids.run_id
       and operation.sequence = ids.sequence
       and (select ok from gate)
)

-- name: put_signal
put_signal as (
    insert into perdure.inbox (run_id, position, data)
    select rows.run_id, rows.position, rows.data
      from unnest(:run_ids::text[], :positions::bigint[], :data::bytea[])
        as rows (run_id, position, data)
     where (select ok from gate)
    on conflict (run_id, position) do update set data = excluded.data
)

-- name: delete_signal
delete_signal as (
    delete from perdure.inbox
     using unnest(:run_ids::text[], :positions::bigint[]) as ids (run_id, position)
     where inbox.run_id = ids.run_id
       and inbox.position = ids.position
       and (select ok from gate)
)

-- name: insert_chunk
insert_chunk as (
    insert into perdure.history (run_id, first_sequence, last_sequence, events, digest)
    select rows.run_id, rows.first_sequence, rows.last_sequence, rows.events, rows.digest
      from unnest(:run_ids::text[], :firsts::bigint[], :lasts::bigint[], :events::bytea[],
                  :digests::bytea[])
        as rows (run_id, first_sequence, last_sequence, events, digest)
     where (select ok from gate)
)

-- name: rewrite_first_chunk
-- Only before any worker has received it.
rewrite_first_chunk as (
    update perdure.history
       set events = rows.events, digest = rows.digest
      from unnest(:run_ids::text[], :events::bytea[], :digests::bytea[])
        as rows (run_id, events, digest)
     where history.run_id = rows.run_id
       and history.first_sequence = 1
       and (select ok from gate)
)

-- name: put_ready
put_ready as (
    insert into perdure.ready (run_id, place, namespace, queue, kind, name, priority, available_at)
    select rows.run_id, rows.place, rows.namespace, rows.queue, rows.kind, rows.name, rows.priority,
           rows.available_at
      from unnest(:run_ids::text[], :places::bigint[], :namespaces::text[], :queues::text[],
                  :kinds::text[], :names::text[], :priorities::bigint[], :available_ats::bigint[])
        as rows (run_id, place, namespace, queue, kind, name, priority, available_at)
     where (select ok from gate)
    on conflict (run_id, place) do update
       set name = excluded.name, available_at = excluded.available_at
)

-- name: delete_ready
delete_ready as (
    delete from perdure.ready
     using unnest(:run_ids::text[], :places::bigint[]) as ids (run_id, place)
     where ready.run_id = ids.run_id
       and ready.place = ids.place
       and (select ok from gate)
)

-- name: put_deadline
put_deadline as (
    insert into perdure.deadline (kind, target, due_at)
    select rows.kind, rows.target, rows.due_at
      from unnest(:kinds::text[], :targets::text[], :due_ats::bigint[])
        as rows (kind, target, due_at)
     where (select ok from gate)
    on conflict (kind, target) do update set due_at = excluded.due_at, taken_until = 0
)

-- name: delete_deadline
delete_deadline as (
    delete from perdure.deadline
     using unnest(:kinds::text[], :targets::text[]) as ids (kind, target)
     where deadline.kind = ids.kind
       and deadline.target = ids.target
       and (select ok from gate)
)

-- name: put_receipt
put_receipt as (
    insert into perdure.receipt (namespace, workflow_id, kind, request_id, data, run_id)
    select rows.namespace, rows.workflow_id, rows.kind, rows.request_id, rows.data, rows.run_id
      from unnest(:namespaces::text[], :workflow_ids::text[], :kinds::text[],
                  :request_ids::text[], :data::bytea[], :run_ids::text[])
        as rows (namespace, workflow_id, kind, request_id, data, run_id)
     where (select ok from gate)
)

-- name: renew_receipt
renew_receipt as (
    update perdure.receipt
       set data = rows.data, run_id = rows.run_id
      from unnest(:namespaces::text[], :workflow_ids::text[], :kinds::text[],
                  :request_ids::text[], :data::bytea[], :run_ids::text[])
        as rows (namespace, workflow_id, kind, request_id, data, run_id)
     where receipt.namespace = rows.namespace
       and receipt.workflow_id = rows.workflow_id
       and receipt.kind = rows.kind
       and receipt.request_id = rows.request_id
       and (select ok from gate)
)

-- name: insert_worker
insert_worker as (
    insert into perdure.worker (namespace, worker_id, revision, changed_at, data)
    select rows.namespace, rows.worker_id, 1, :now::bigint, rows.data
      from unnest(:namespaces::text[], :worker_ids::text[], :data::bytea[])
        as rows (namespace, worker_id, data)
     where (select ok from gate)
)

-- name: update_worker
update_worker as (
    update perdure.worker
       set revision = worker.revision + 1, changed_at = :now::bigint, data = rows.data
      from unnest(:namespaces::text[], :worker_ids::text[], :data::bytea[])
        as rows (namespace, worker_id, data)
     where worker.namespace = rows.namespace
       and worker.worker_id = rows.worker_id
       and (select ok from gate)
)

-- name: delete_worker
delete_worker as (
    delete from perdure.worker
     using unnest(:namespaces::text[], :worker_ids::text[]) as ids (namespace, worker_id)
     where worker.namespace = ids.namespace
       and worker.worker_id = ids.worker_id
       and (select ok from gate)
)

-- name: insert_record
insert_record as (
    insert into perdure.record (kind, namespace, key, version, due_at, data)
    select rows.kind, rows.namespace, rows.key, 1, rows.due_at, rows.data
      from unnest(:kinds::text[], :namespaces::text[], :keys::text[], :due_ats::bigint[],
                  :data::bytea[])
        as rows (kind, namespace, key, due_at, data)
     where (select ok from gate)
)

-- name: update_record
update_record as (
    update perdure.record
       set version = record.version + 1, due_at = rows.due_at, data = rows.data
      from unnest(:kinds::text[], :namespaces::text[], :keys::text[], :due_ats::bigint[],
                  :data::bytea[])
        as rows (kind, namespace, key, due_at, data)
     where record.kind = rows.kind
       and record.namespace = rows.namespace
       and record.key = rows.key
       and (select ok from gate)
)

-- name: delete_record
delete_record as (
    delete from perdure.record
     using unnest(:kinds::text[], :namespaces::text[], :keys::text[]) as ids (kind, namespace, key)
     where record.kind = ids.kind
       and record.namespace = ids.namespace
       and record.key = ids.key
       and (select ok from gate)
)

-- name: put_payload
put_payload as (
    insert into perdure.payload (namespace, reference_id, loose_bytes, data)
    select rows.namespace, rows.reference_id, rows.loose_bytes, rows.data
      from unnest(:namespaces::text[], :reference_ids::text[], :sizes::bigint[], :data::bytea[])
        as rows (namespace, reference_id, loose_bytes, data)
     where (select ok from gate)
    on conflict (namespace, reference_id) do update
       set loose_bytes = excluded.loose_bytes, data = excluded.data
)

-- name: keep_payload
keep_payload as (
    update perdure.payload
       set loose_bytes = null
      from unnest(:namespaces::text[], :reference_ids::text[]) as ids (namespace, reference_id)
     where payload.namespace = ids.namespace
       and payload.reference_id = ids.reference_id
       and (select ok from gate)
)

-- name: delete_payload
delete_payload as (
    delete from perdure.payload
     using unnest(:namespaces::text[], :reference_ids::text[]) as ids (namespace, reference_id)
     where payload.namespace = ids.namespace
       and payload.reference_id = ids.reference_id
       and (select ok from gate)
)

-- name: insert_item
insert_item as (
    insert into perdure.stream_item (run_id, stream_name, item_offset, idempotency_key, data)
    select rows.run_id, rows.stream_name, rows.item_offset, rows.idempotency_key, rows.data
      from unnest(:run_ids::text[], :stream_names::text[], :offsets::bigint[],
                  :idempotency_keys::text[], :data::bytea[])
        as rows (run_id, stream_name, item_offset, idempotency_key, data)
     where (select ok from gate)
)

-- name: trim_items
trim_items as (
    delete from perdure.stream_item
     using unnest(:run_ids::text[], :stream_names::text[], :belows::bigint[])
        as ids (run_id, stream_name, below)
     where stream_item.run_id = ids.run_id
       and stream_item.stream_name = ids.stream_name
       and stream_item.item_offset < ids.below
       and (select ok from gate)
)

-- name: delete_run
delete_run as (
    delete from perdure.run
     using unnest(:run_ids::text[]) as ids (run_id)
     where run.run_id = ids.run_id
       and (select ok from gate)
)

-- name: delete_chunk
delete_chunk as (
    delete from perdure.history
     using unnest(:run_ids::text[], :firsts::bigint[]) as ids (run_id, first_sequence)
     where history.run_id = ids.run_id
       and history.first_sequence = ids.first_sequence
       and (select ok from gate)
)

-- name: delete_item
delete_item as (
    delete from perdure.stream_item
     using unnest(:run_ids::text[], :stream_names::text[], :offsets::bigint[])
        as ids (run_id, stream_name, item_offset)
     where stream_item.run_id = ids.run_id
       and stream_item.stream_name = ids.stream_name
       and stream_item.item_offset = ids.item_offset
       and (select ok from gate)
)

-- name: delete_receipt
delete_receipt as (
    delete from perdure.receipt
     using unnest(:namespaces::text[], :workflow_ids::text[], :kinds::text[],
                  :request_ids::text[])
        as ids (namespace, workflow_id, kind, request_id)
     where receipt.namespace = ids.namespace
       and receipt.workflow_id = ids.workflow_id
       and receipt.kind = ids.kind
       and receipt.request_id = ids.request_id
       and (select ok from gate)
)
