-- Queries of the beat. `:name` is a parameter; the store numbers them.

-- name: load_runs
-- Runs that differ from the versions that the caller holds, with their rows in other tables. One
-- statement, so that each run is one consistent snapshot. Of a long history only the newest part
-- is loaded; of a removed run only its id is returned.
with requested as (
    select ids.run_id, ids.version, ids.known
      from unnest(:run_ids::text[], :versions::bigint[], :known::bigint[])
        as ids (run_id, version, known)
)
select run.run_id, run.namespace, run.workflow_id, run.workflow_type, run.queue, run.run_number,
       run.started_at, coalesce(open_run.status, run.status), run.closed_at,
       coalesce(open_run.version, run.version), open_run.task_owner,
       coalesce(open_run.state, run.state), open_run.run_id is null,
       steps.sequences, steps.data, signals.positions, signals.data, chunks.events, requested.run_id,
       chunks.digests
  from requested
  left join perdure.run on run.run_id = requested.run_id
  left join perdure.open_run on open_run.run_id = requested.run_id
 cross join lateral (
    select array_agg(sequence order by sequence) as sequences,
           array_agg(data order by sequence) as data
      from perdure.operation
     where operation.run_id = requested.run_id
 ) as steps
 cross join lateral (
    select array_agg(position order by position) as positions,
           array_agg(data order by position) as data
      from perdure.inbox
     where inbox.run_id = requested.run_id
 ) as signals
 cross join lateral (
    select array_agg(newest.events order by newest.first_sequence) as events,
           array_agg(newest.digest order by newest.first_sequence) as digests
      from (select history.events, history.digest, history.first_sequence,
                   sum(octet_length(history.events))
                       over (order by history.first_sequence desc) as size
              from perdure.history
             where history.run_id = requested.run_id
               and history.first_sequence > requested.known) as newest
     where newest.size - octet_length(newest.events) < :most::bigint
 ) as chunks
 where coalesce(open_run.version, run.version, 0) <> requested.version

-- name: load_chunks
-- The whole history of one run.
select events, digest
  from perdure.history
 where run_id = :run_id::text
 order by first_sequence

-- name: load_first_chunk
-- The start of one run's history.
select events, digest
  from perdure.history
 where run_id = :run_id::text
 order by first_sequence
 limit 1

-- name: find_current
-- The newest run of each of the given workflow ids.
select ids.namespace, ids.workflow_id, newest.run_id
  from unnest(:namespaces::text[], :workflow_ids::text[]) as ids (namespace, workflow_id)
 cross join lateral (
    select run.run_id
      from perdure.run
     where run.namespace = ids.namespace
       and run.workflow_id = ids.workflow_id
     order by run.run_number desc
     limit 1
 ) as newest

-- name: find_receipts
-- The receipts of the given commands.
select receipt.namespace, receipt.workflow_id, receipt.kind, receipt.request_id, receipt.data
  from unnest(:namespaces::text[], :workflow_ids::text[], :kinds::text[], :request_ids::text[])
    as ids (namespace, workflow_id, kind, request_id)
  join perdure.receipt
    on receipt.namespace = ids.namespace
   and receipt.workflow_id = ids.workflow_id
   and receipt.kind = ids.kind
   and receipt.request_id = ids.request_id

-- name: find_workers
-- The given worker registrations.
select worker.revision, worker.data
  from unnest(:namespaces::text[], :worker_ids::text[]) as ids (namespace, worker_id)
  join perdure.worker
    on worker.namespace = ids.namespace
   and worker.worker_id = ids.worker_id

-- name: find_records
-- The records of the given keys.
select record.kind, record.namespace, record.key, record.version, record.due_at, record.data
  from unnest(:kinds::text[], :namespaces::text[], :keys::text[]) as ids (kind, namespace, key)
  join perdure.record
    on record.kind = ids.kind
   and record.namespace = ids.namespace
   and record.key = ids.key

-- name: find_kind
-- Records of one kind in all namespaces.
select namespace, key, version, due_at, data
  from perdure.record
 where kind = :kind::text
 order by namespace, key
 limit :most::bigint

-- name: wait_for_records
-- Lock the given records, in key order, which all nodes follow.
select record.key
  from unnest(:kinds::text[], :namespaces::text[], :keys::text[]) as ids (kind, namespace, key)
  join perdure.record
    on record.kind = ids.kind
   and record.namespace = ids.namespace
   and record.key = ids.key
 order by record.kind, record.namespace, record.key
   for update of record

-- name: load_ready
-- The next tasks of a queue, of the types that pollers wait for. Rows that another node has locked
-- are skipped.
select ready.run_id, ready.place, ready.name
  from perdure.ready
  join perdure.open_run on open_run.run_id = ready.run_id
 where ready.namespace = :namespace::text
   and ready.queue = :queue::text
   and ready.kind = :kind::text
   and ready.name = any(:names::text[])
 order by ready.priority, ready.available_at, ready.run_id, ready.place
 limit :most::bigint
   for update skip locked

-- name: hold_runs
-- Lock the given runs, in id order, which all nodes follow.
select run_id
  from perdure.open_run
 where run_id = any(:run_ids::text[])
 order by run_id
   for update

-- name: count_ready
-- How many such tasks there are, up to a limit, including rows that are locked.
select count(*)
  from (select ready.run_id
          from perdure.ready
          join perdure.open_run on open_run.run_id = ready.run_id
         where ready.namespace = :namespace::text
           and ready.queue = :queue::text
           and ready.kind = :kind::text
           and ready.name = any(:names::text[])
         order by ready.priority, ready.available_at, ready.run_id, ready.place
         limit :most::bigint) as found

-- name: find_leases
-- The tasks that are leased to a worker.
select open_run.run_id, 0::bigint
  from perdure.open_run
  join perdure.run on run.run_id = open_run.run_id
 where open_run.task_owner = :owner::text
   and run.namespace = :namespace::text
union all
select operation.run_id, operation.sequence
  from perdure.operation
  join perdure.run on run.run_id = operation.run_id
 where operation.lease_owner = :owner::text
   and run.namespace = :namespace::text

-- name: find_standing
-- Those of the given tasks that are leased.
with named as (
    select tasks.run_id, tasks.place
      from unnest(:run_ids::text[], :places::bigint[]) as tasks (run_id, place)
)
select named.run_id, named.place
  from named
  join perdure.open_run on open_run.run_id = named.run_id
 where named.place = 0
   and open_run.task_owner is not null
union all
select named.run_id, named.place
  from named
  join perdure.operation on operation.run_id = named.run_id
                        and operation.sequence = named.place
 where operation.lease_owner is not null

-- name: find_poll_leases
-- Leases that were granted to the given polls.
select run.namespace, open_run.task_owner, open_run.task_poll, open_run.run_id, 0::bigint
  from perdure.open_run
  join perdure.run on run.run_id = open_run.run_id
 where open_run.task_owner = any(:owners::text[])
   and open_run.task_poll = any(:polls::text[])
union all
select run.namespace, operation.lease_owner, operation.lease_poll, operation.run_id,
       operation.sequence
  from perdure.operation
  join perdure.run on run.run_id = operation.run_id
 where operation.lease_owner = any(:owners::text[])
   and operation.lease_poll = any(:polls::text[])

-- name: take_due
-- Claim the targets of due deadlines for a while. Rows that another node has locked are skipped.
with due as (
    select deadline.kind, deadline.target
      from perdure.deadline
     where deadline.due_at <= :now::bigint
       and deadline.taken_until <= :now::bigint
     order by deadline.due_at, deadline.kind, deadline.target
     limit :most::bigint
       for update skip locked
),
taken as (
    update perdure.deadline
       set taken_until = :until::bigint
      from due
     where deadline.kind = due.kind
       and deadline.target = due.target
    returning deadline.due_at, deadline.kind, deadline.target
)
select kind, target
  from taken
 order by due_at, kind, target

-- name: enrol
-- Register this node, or register it again: a commit of an earlier connection of this node is
-- either durable when this returns, or can no longer succeed.
insert into perdure.node (node_id, epoch, seen_at)
values (
    :node_id::text,
    1,
    -- A node that has just started has not read the database clock yet.
    least(:now::bigint, (extract(epoch from clock_timestamp()) * 1000000)::bigint)
)
on conflict (node_id) do update set epoch = node.epoch + 1, seen_at = excluded.seen_at
returning epoch

-- name: leave
-- Remove this node: it will not write any more.
with removed as (
    delete from perdure.node
     where node_id = :node_id::text
)
delete from perdure.beat
 where node_id = :node_id::text

-- name: find_beat
select number
  from perdure.beat
 where node_id = :node_id::text
   and number = :number::bigint

-- name: note_life
-- Record that this node is alive, and remove its old beats.
with alive as (
    update perdure.node
       set seen_at = :now::bigint
     where node_id = :node_id::text
)
delete from perdure.beat
 where node_id = :node_id::text
   and number < :before::bigint

-- name: forget_nodes
with removed as (
    delete from perdure.node
     where seen_at < :before::bigint
       and node_id <> :node_id::text
    returning node_id
)
delete from perdure.beat
 using removed
 where beat.node_id = removed.node_id

-- name: find_items
-- The offsets of items of a stream, by their idempotency keys.
select idempotency_key, item_offset
  from perdure.stream_item
 where run_id = :run_id::text
   and stream_name = :stream_name::text
   and idempotency_key = any(:keys::text[])
