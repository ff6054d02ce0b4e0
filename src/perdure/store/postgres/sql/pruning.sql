-- Queries of pruning: closed runs by their age, and the rows that removed runs leave behind.

-- name: find_closed
-- A page of closed pull runs, in the order in which they closed.
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, null, state
  from perdure.run
 where namespace = :namespace::text
   and workflow_id <> run_id
   and closed_at < :before::bigint
   and (closed_at, run_id) > (:closed_at::bigint, :run_id::text)
 order by closed_at, run_id
 limit :most::bigint
   for update skip locked

-- name: find_closed_pushed
-- The same for push runs.
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, null, state
  from perdure.run
 where namespace = :namespace::text
   and workflow_id = run_id
   and closed_at < :before::bigint
   and (closed_at, run_id) > (:closed_at::bigint, :run_id::text)
 order by closed_at, run_id
 limit :most::bigint
   for update skip locked

-- name: read_closed
-- The same without locks, for readers.
select run_id
  from perdure.run
 where namespace = :namespace::text
   and workflow_id <> run_id
   and closed_at < :before::bigint
   and (closed_at, run_id) > (:closed_at::bigint, :run_id::text)
 order by closed_at, run_id
 limit :most::bigint

-- name: read_closed_pushed
-- The same for push runs.
select run_id
  from perdure.run
 where namespace = :namespace::text
   and workflow_id = run_id
   and closed_at < :before::bigint
   and (closed_at, run_id) > (:closed_at::bigint, :run_id::text)
 order by closed_at, run_id
 limit :most::bigint

-- name: find_rows
-- The given runs, open or closed. Rows that another node has locked are skipped.
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, null, state
  from perdure.run
 where run_id = any(:run_ids::text[])
 order by run_id
   for update skip locked

-- name: find_keys_of
-- Records whose keys begin with the id of a run.
select kinds.kind, found.key
  from unnest(:kinds::text[]) as kinds (kind)
 cross join unnest(:run_ids::text[]) as ids (run_id)
 cross join lateral (
    select record.key
      from perdure.record
     where record.kind = kinds.kind
       and record.namespace = :namespace::text
       and record.key >= ids.run_id
       and record.key < ids.run_id || :last::text
     order by record.key
     limit :most::bigint
 ) as found
 order by kinds.kind, found.key
 limit :most::bigint

-- name: find_chunks_left
select run_id, first_sequence, octet_length(events)
  from perdure.history
 where run_id = any(:run_ids::text[])
 order by run_id, first_sequence
 limit :most::bigint

-- name: find_operations_left
select run_id, sequence
  from perdure.operation
 where run_id = any(:run_ids::text[])
 order by run_id, sequence
 limit :most::bigint

-- name: find_inbox_left
select run_id, position
  from perdure.inbox
 where run_id = any(:run_ids::text[])
 order by run_id, position
 limit :most::bigint

-- name: find_ready_left
select run_id, place
  from perdure.ready
 where run_id = any(:run_ids::text[])
 order by run_id, place
 limit :most::bigint

-- name: find_items_left
select run_id, stream_name, item_offset, octet_length(data)
  from perdure.stream_item
 where run_id = any(:run_ids::text[])
 order by run_id, stream_name, item_offset
 limit :most::bigint

-- name: find_receipts_left
select namespace, workflow_id, kind, request_id
  from perdure.receipt
 where run_id = any(:run_ids::text[])
 order by run_id, namespace, workflow_id, kind, request_id
 limit :most::bigint

-- name: find_old_receipts_left
-- Receipts without a run id, of workflow ids that have no runs any more.
select namespace, workflow_id, kind, request_id
  from perdure.receipt
 where namespace = :namespace::text
   and workflow_id = any(:workflow_ids::text[])
   and run_id is null
   and not exists (select 1
                     from perdure.run
                    where run.namespace = receipt.namespace
                      and run.workflow_id = receipt.workflow_id)
 order by workflow_id, kind, request_id
 limit :most::bigint
