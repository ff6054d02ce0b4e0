-- What readers ask. None of these decides anything.

-- name: read_run
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from run
 where run_id = :run_id

-- name: read_operations
select sequence, data
  from operation
 where run_id = :run_id
 order by sequence

-- name: read_instance
-- Every run of a workflow id, oldest first.
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from run
 where namespace = :namespace
   and workflow_id = :workflow_id
 order by run_number

-- name: read_list
-- One page of runs, newest first, behind a cursor.
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from run
 where namespace = :namespace
   and (started_at, run_id) < (:started_at, :run_id)
   and (:workflow_type is null or workflow_type = :workflow_type)
   and (:hidden_type is null or workflow_type <> :hidden_type)
   and (:statuses is null or status in (select value from json_each(:statuses)))
   and (:text is null or instr(workflow_id, :text) > 0)
 order by started_at desc, run_id desc
 limit :most

-- name: read_pushed
-- One page of push runs, newest first, behind a cursor.
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from run
 where namespace = :namespace
   and workflow_id = run_id
   and started_at >= :since
   and (started_at, run_id) < (:started_at, :run_id)
   and (:app is null or queue = :app)
   and (:workflow_type is null or workflow_type = :workflow_type)
   and (:statuses is null or status in (select value from json_each(:statuses)))
   and (:text is null or instr(workflow_type, :text) > 0 or instr(run_id, :text) > 0
        or instr(queue, :text) > 0)
 order by started_at desc, run_id desc
 limit :most

-- name: read_pushed_oldest
-- The same, oldest first.
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from run
 where namespace = :namespace
   and workflow_id = run_id
   and started_at >= :since
   and (started_at, run_id) > (:started_at, :run_id)
   and (:app is null or queue = :app)
   and (:workflow_type is null or workflow_type = :workflow_type)
   and (:statuses is null or status in (select value from json_each(:statuses)))
   and (:text is null or instr(workflow_type, :text) > 0 or instr(run_id, :text) > 0
        or instr(queue, :text) > 0)
 order by started_at, run_id
 limit :most

-- name: read_pushed_by_word
-- One page of push runs by a word of theirs, then by their start. Nothing but the place of a run in
-- time has an index, so this looks at every run that the rest lets pass.
with found as (
    select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
           closed_at, version, task_owner, state,
           case :sort
               when 'workflow' then workflow_type
               when 'app' then queue
               else case status
                   when 'pending' then 'queued'
                   when 'completed' then 'succeeded'
                   when 'terminated' then 'cancelled'
                   else status
               end
           end as place
      from run
     where namespace = :namespace
       and workflow_id = run_id
       and started_at >= :since
       and (:app is null or queue = :app)
       and (:workflow_type is null or workflow_type = :workflow_type)
       and (:statuses is null or status in (select value from json_each(:statuses)))
       and (:text is null or instr(workflow_type, :text) > 0 or instr(run_id, :text) > 0
            or instr(queue, :text) > 0)
)
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from found
 where :place is null or (place, started_at, run_id) > (:place, :started_at, :run_id)
 order by place, started_at, run_id
 limit :most

-- name: read_pushed_by_word_down
-- The same from the other end.
with found as (
    select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
           closed_at, version, task_owner, state,
           case :sort
               when 'workflow' then workflow_type
               when 'app' then queue
               else case status
                   when 'pending' then 'queued'
                   when 'completed' then 'succeeded'
                   when 'terminated' then 'cancelled'
                   else status
               end
           end as place
      from run
     where namespace = :namespace
       and workflow_id = run_id
       and started_at >= :since
       and (:app is null or queue = :app)
       and (:workflow_type is null or workflow_type = :workflow_type)
       and (:statuses is null or status in (select value from json_each(:statuses)))
       and (:text is null or instr(workflow_type, :text) > 0 or instr(run_id, :text) > 0
            or instr(queue, :text) > 0)
)
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from found
 where :place is null or (place, started_at, run_id) < (:place, :started_at, :run_id)
 order by place desc, started_at desc, run_id desc
 limit :most

-- name: read_pushed_by_duration
-- One page of push runs by how long they took, then by their start. This looks at all of them, too.
with found as (
    select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
           closed_at, version, task_owner, state,
           coalesce(closed_at - started_at, -1) as place
      from run
     where namespace = :namespace
       and workflow_id = run_id
       and started_at >= :since
       and (:app is null or queue = :app)
       and (:workflow_type is null or workflow_type = :workflow_type)
       and (:statuses is null or status in (select value from json_each(:statuses)))
       and (:text is null or instr(workflow_type, :text) > 0 or instr(run_id, :text) > 0
            or instr(queue, :text) > 0)
)
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from found
 where :place is null or (place, started_at, run_id) > (:place, :started_at, :run_id)
 order by place, started_at, run_id
 limit :most

-- name: read_pushed_by_duration_down
-- The same from the other end.
with found as (
    select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
           closed_at, version, task_owner, state,
           coalesce(closed_at - started_at, -1) as place
      from run
     where namespace = :namespace
       and workflow_id = run_id
       and started_at >= :since
       and (:app is null or queue = :app)
       and (:workflow_type is null or workflow_type = :workflow_type)
       and (:statuses is null or status in (select value from json_each(:statuses)))
       and (:text is null or instr(workflow_type, :text) > 0 or instr(run_id, :text) > 0
            or instr(queue, :text) > 0)
)
select run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state
  from found
 where :place is null or (place, started_at, run_id) < (:place, :started_at, :run_id)
 order by place desc, started_at desc, run_id desc
 limit :most

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
select first_sequence, last_sequence, events
  from history
 where run_id = :run_id
   and first_sequence >= (select coalesce(max(first_sequence), 1)
                            from history
                           where run_id = :run_id
                             and first_sequence <= :after + 1)
 order by first_sequence

-- name: read_last_chunk
select events
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

-- name: load_ready_names
select distinct namespace, queue, kind, name
  from ready

-- name: check
select 1

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
 order by key
 limit :most

-- name: read_records_backwards
select key, due_at, data
  from record
 where kind = :kind
   and namespace = :namespace
   and key >= :first
   and key > :above
   and key < :below
 order by key desc
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
