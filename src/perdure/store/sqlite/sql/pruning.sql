-- Queries of pruning: closed runs by their age, and the rows that removed runs leave behind.

-- name: find_closed
-- A page of closed pull runs, in the order in which they closed.
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from run
 where namespace = :namespace
   and workflow_id <> run_id
   and closed_at < :before
   and (closed_at, run_id) > (:closed_at, :run_id)
 order by closed_at, run_id
 limit :most

-- name: find_closed_pushed
-- The same for push runs.
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from run
 where namespace = :namespace
   and workflow_id = run_id
   and closed_at < :before
   and (closed_at, run_id) > (:closed_at, :run_id)
 order by closed_at, run_id
 limit :most

-- name: delete_run
delete from run
 where run_id = :run_id

-- name: find_keys_of
-- Records whose keys begin with the id of a run.
select record.kind, record.key
  from json_each(:run_ids)
 cross join record
    on record.kind in (select value from json_each(:kinds))
   and record.namespace = :namespace
   and record.key >= json_each.value
   and record.key < json_each.value || :last
 order by record.kind, record.key
 limit :most

-- name: find_chunks_left
select run_id, first_sequence, length(events)
  from history
 where run_id in (select value from json_each(:run_ids))
 order by run_id, first_sequence
 limit :most

-- name: find_operations_left
select run_id, sequence
  from operation
 where run_id in (select value from json_each(:run_ids))
 order by run_id, sequence
 limit :most

-- name: find_inbox_left
select run_id, position
  from inbox
 where run_id in (select value from json_each(:run_ids))
 order by run_id, position
 limit :most

-- name: find_ready_left
select run_id, place
  from ready
 where run_id in (select value from json_each(:run_ids))
 order by run_id, place
 limit :most

-- name: find_items_left
select run_id, stream_name, item_offset, length(data)
  from stream_item
 where run_id in (select value from json_each(:run_ids))
 order by run_id, stream_name, item_offset
 limit :most

-- name: find_receipts_left
select namespace, workflow_id, kind, request_id
  from receipt
 where run_id in (select value from json_each(:run_ids))
 order by run_id, namespace, workflow_id, kind, request_id
 limit :most

-- name: find_old_receipts_left
-- Receipts without a run id, of workflow ids that have no runs any more.
select namespace, workflow_id, kind, request_id
  from receipt
 where namespace = :namespace
   and workflow_id in (select value from json_each(:workflow_ids))
   and run_id is null
   and not exists (select 1
                     from run
                    where run.namespace = receipt.namespace
                      and run.workflow_id = receipt.workflow_id)
 order by workflow_id, kind, request_id
 limit :most
