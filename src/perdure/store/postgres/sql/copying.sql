-- Queries of a copy: every table from end to end, in the form that both stores share.

-- name: find_life
-- Processes that may still write: connected servers, and nodes that wrote recently.
select (select count(*)
          from pg_stat_activity
         where datname = current_database()
           and application_name = 'perdure'),
       (select count(*)
          from perdure.node
         where seen_at > :since::bigint)

-- name: read_nodes
-- The last beat of every node.
select node.node_id, node.epoch,
       (select max(beat.number) from perdure.beat where beat.node_id = node.node_id)
  from perdure.node
 order by node.node_id

-- name: find_anything
-- Whether the store holds anything that an empty one does not.
select exists (select 1 from perdure.run)
    or exists (select 1 from perdure.open_run)
    or exists (select 1 from perdure.operation)
    or exists (select 1 from perdure.inbox)
    or exists (select 1 from perdure.history)
    or exists (select 1 from perdure.ready)
    or exists (select 1 from perdure.deadline)
    or exists (select 1 from perdure.receipt)
    or exists (select 1 from perdure.worker)
    or exists (select 1 from perdure.record)
    or exists (select 1 from perdure.payload)
    or exists (select 1 from perdure.stream_item)
    or exists (select 1 from perdure.namespace where name <> 'default')

-- name: clear_namespaces
delete from perdure.namespace

-- name: restore_namespaces
insert into perdure.namespace (name)
values ('default')

-- name: give_namespace
select name
  from perdure.namespace

-- name: give_run
select run.run_id, run.namespace, run.workflow_id, run.workflow_type, run.queue, run.run_number,
       run.started_at, coalesce(open_run.status, run.status), run.closed_at,
       coalesce(open_run.version, run.version), open_run.task_owner,
       coalesce(open_run.state, run.state)
  from perdure.run
  left join perdure.open_run on open_run.run_id = run.run_id

-- name: give_operation
select run_id, sequence, lease_owner, data
  from perdure.operation

-- name: give_inbox
select run_id, position, data
  from perdure.inbox

-- name: give_history
select run_id, first_sequence, last_sequence, events, digest
  from perdure.history

-- name: give_ready
select run_id, place, namespace, queue, kind, name, priority, available_at
  from perdure.ready

-- name: give_deadline
select kind, target, due_at
  from perdure.deadline

-- name: give_receipt
select namespace, workflow_id, kind, request_id, data, run_id
  from perdure.receipt

-- name: give_worker
select namespace, worker_id, data
  from perdure.worker

-- name: give_record
select kind, namespace, key, due_at, data
  from perdure.record

-- name: give_stream_item
select run_id, stream_name, item_offset, idempotency_key, data
  from perdure.stream_item

-- name: give_payload
select namespace, reference_id, loose_bytes, data
  from perdure.payload
