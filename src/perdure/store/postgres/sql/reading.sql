-- Queries of readers. Nothing is decided on their results.

-- part: run_columns
run.run_id, run.namespace, run.workflow_id, run.workflow_type, run.queue, run.run_number,
       run.started_at, coalesce(open_run.status, run.status) as status, run.closed_at,
       coalesce(open_run.version, run.version) as version, open_run.task_owner,
       coalesce(open_run.state, run.state) as state

-- name: read_run
select {run_columns}, steps.sequences, steps.data
  from perdure.run
  left join perdure.open_run on open_run.run_id = run.run_id
 cross join lateral (
    select array_agg(sequence order by sequence) as sequences,
           array_agg(data order by sequence) as data
      from perdure.operation
     where operation.run_id = run.run_id
 ) as steps
 where run.run_id = :run_id::text

-- name: count_messages
-- How many messages of a run wait after the start of its inbox, and how many come before it.
select count(*) filter (where position >= :first::bigint),
       count(*) filter (where position < :first::bigint)
  from perdure.inbox
 where run_id = :run_id::text

-- name: read_instance
-- Every run of a workflow id, oldest first.
select {run_columns}
  from perdure.run
  left join perdure.open_run on open_run.run_id = run.run_id
 where run.namespace = :namespace::text
   and run.workflow_id = :workflow_id::text
 order by run.run_number

-- part: listed
run.namespace = :namespace::text
   and (run.started_at, run.run_id) < (:started_at::bigint, :run_id::text)
   and run.started_at >= :since::bigint
   and (:workflow_type::text is null or run.workflow_type = :workflow_type::text)
   and (:hidden_type::text is null or run.workflow_type <> :hidden_type::text)
   and (:statuses::text[] is null or coalesce(open_run.status, run.status) = any(:statuses::text[]))

-- part: listed_columns
{run_columns}
  from perdure.run
  left join perdure.open_run on open_run.run_id = run.run_id
 where {listed}

-- part: newest_first
order by run.started_at desc, run.run_id desc
 limit :most::bigint

-- name: read_list
-- One page of runs, newest first, after a cursor.
select {listed_columns}
{newest_first}

-- name: read_open_list
-- The same for open runs: there may be few of them among many.
select {run_columns}
  from perdure.run
  join perdure.open_run on open_run.run_id = run.run_id
 where {listed}
   and run.closed_at is null
{newest_first}

-- name: read_list_of_ids
-- The same among the runs of the given workflow ids.
select {listed_columns}
   and run.workflow_id = any(:wanted::text[])
{newest_first}

-- name: read_list_of_runs
-- The same among the given runs.
select {listed_columns}
   and run.run_id = any(:wanted::text[])
{newest_first}

-- Lists of push runs. Each order has an index of its own. Orders by a value that changes while a
-- run is open have an index of closed runs, and open runs are merged in.

-- part: pushed_runs
perdure.run
  left join perdure.open_run on open_run.run_id = run.run_id
 where run.namespace = :namespace::text
   and run.workflow_id = run.run_id
   and run.started_at >= :since::bigint
   and (:app::text is null or run.queue = :app::text)
   and (:workflow_type::text is null or run.workflow_type = :workflow_type::text)
   and (:statuses::text[] is null or coalesce(open_run.status, run.status) = any(:statuses::text[]))
   and (:text::text is null or strpos(run.workflow_type, :text::text) > 0
        or strpos(run.run_id, :text::text) > 0 or strpos(run.queue, :text::text) > 0)

-- part: behind_word
(:place::text, :started_at::bigint, :run_id::text)

-- part: behind_number
(:place::bigint, :started_at::bigint, :run_id::text)

-- name: read_pushed
-- One page of push runs after a cursor, by their start.
select {run_columns}
  from {pushed_runs}
   and (run.started_at, run.run_id) {beyond} (:started_at::bigint, :run_id::text)
 order by run.started_at {way}, run.run_id {way}
 limit :most::bigint

-- name: read_pushed_by_workflow
select {run_columns}
  from {pushed_runs}
   and (run.workflow_type, run.started_at, run.run_id) {beyond} {behind_word}
 order by run.workflow_type {way}, run.started_at {way}, run.run_id {way}
 limit :most::bigint

-- name: read_pushed_by_app
select {run_columns}
  from {pushed_runs}
   and (run.queue, run.started_at, run.run_id) {beyond} {behind_word}
 order by run.queue {way}, run.started_at {way}, run.run_id {way}
 limit :most::bigint

-- part: shown_when_over
(case run.status
     when 'completed' then 'succeeded'
     when 'terminated' then 'cancelled'
     else run.status
 end collate ucs_basic)

-- part: shown_when_open
(case open_run.status when 'pending' then 'queued' else open_run.status end collate ucs_basic)

-- name: read_pushed_by_status
-- By the status name that clients see.
with finished as (
    select {run_columns}, {shown_when_over} as place
      from {pushed_runs}
       and run.closed_at is not null
       and ({shown_when_over}, run.started_at, run.run_id) {beyond} {behind_word}
     order by {shown_when_over} {way}, run.started_at {way}, run.run_id {way}
     limit :most::bigint
), unfinished as (
    select {run_columns}, {shown_when_open} as place
      from {pushed_runs}
       and run.closed_at is null
       and ({shown_when_open}, run.started_at, run.run_id) {beyond} {behind_word}
     order by {shown_when_open} {way}, run.started_at {way}, run.run_id {way}
     limit :most::bigint
)
{both_in_order}

-- name: read_pushed_by_duration
-- An open run has no duration, which sorts before all others.
with finished as (
    select {run_columns}, run.closed_at - run.started_at as place
      from {pushed_runs}
       and run.closed_at is not null
       and (run.closed_at - run.started_at, run.started_at, run.run_id) {beyond} {behind_number}
     order by run.closed_at - run.started_at {way}, run.started_at {way}, run.run_id {way}
     limit :most::bigint
), unfinished as (
    select {run_columns}, -1::bigint as place
      from {pushed_runs}
       and run.closed_at is null
       and (-1::bigint, run.started_at, run.run_id) {beyond} {behind_number}
     order by run.started_at {way}, run.run_id {way}
     limit :most::bigint
)
{both_in_order}

-- part: both_in_order
select {page_columns}
  from (select {page_columns}, place from finished
        union all
        select {page_columns}, place from unfinished) as page
 order by place {way}, started_at {way}, run_id {way}
 limit :most::bigint

-- part: page_columns
run_id, namespace, workflow_id, workflow_type, queue, run_number, started_at, status,
       closed_at, version, task_owner, state

-- name: read_pushed_figures
-- How many push runs started in each interval, by status, and their durations.
select run.started_at / :step::bigint, coalesce(open_run.status, run.status), count(*),
       sum(run.closed_at - run.started_at)::bigint, max(run.closed_at - run.started_at)
  from perdure.run
  left join perdure.open_run on open_run.run_id = run.run_id
 where run.namespace = :namespace::text
   and run.workflow_id = run.run_id
   and run.started_at >= :since::bigint
   and (:app::text is null or run.queue = :app::text)
   and (:workflow_type::text is null or run.workflow_type = :workflow_type::text)
 group by 1, 2

-- name: read_chunks
-- The chunks of a history that reach beyond a sequence, oldest first, at most enough of them for
-- a page: every chunk has at least one event.
select first_sequence, last_sequence, events, digest
  from perdure.history
 where run_id = :run_id::text
   and first_sequence >= (select coalesce(max(before.first_sequence), 1)
                            from perdure.history as before
                           where before.run_id = :run_id::text
                             and before.first_sequence <= :after::bigint + 1)
 order by first_sequence
 limit :most::bigint

-- name: read_last_chunk
select events, digest
  from perdure.history
 where run_id = :run_id::text
 order by first_sequence desc
 limit 1

-- name: load_workers
select revision, data
  from perdure.worker
 order by namespace, worker_id

-- name: load_changed_workers
-- Registrations that changed recently, on any node.
select revision, data
  from perdure.worker
 where changed_at >= :since::bigint

-- name: load_namespaces
select name
  from perdure.namespace
 order by name

-- name: add_namespace
-- Does nothing if the namespace exists.
insert into perdure.namespace (name)
values (:name::text)
    on conflict do nothing

-- name: load_ready_names
select distinct namespace, queue, kind, name
  from perdure.ready

-- name: load_lease_owners
-- All lease owners.
select run.namespace, open_run.task_owner
  from perdure.open_run
  join perdure.run on run.run_id = open_run.run_id
 where open_run.task_owner is not null
union
select run.namespace, operation.lease_owner
  from perdure.operation
  join perdure.run on run.run_id = operation.run_id
 where operation.lease_owner is not null

-- name: find_next_due
-- The next deadline, or the end of a node's claim on one.
select least(
    (select due_at
       from perdure.deadline
      where due_at > :now::bigint
      order by due_at
      limit 1),
    (select min(greatest(due_at, taken_until))
       from perdure.deadline
      where due_at <= :now::bigint)
)

-- name: read_versions
-- The versions of the given runs.
select run.run_id, coalesce(open_run.version, run.version)
  from unnest(:run_ids::text[]) as ids (run_id)
  join perdure.run on run.run_id = ids.run_id
  left join perdure.open_run on open_run.run_id = ids.run_id

-- name: read_clock
-- The database clock, which all nodes use.
select (extract(epoch from clock_timestamp()) * 1000000)::bigint

-- name: read_latest_life
-- The latest instant at which another node recorded that it is alive, by its own clock.
select coalesce(max(seen_at), 0)
  from perdure.node
 where node_id <> :node_id::text

-- name: check
select 1

-- name: probe
-- Writes a number of incompressible bytes, to test whether the disk accepts them.
insert into perdure.meta (key, value)
select 'probe', string_agg(md5(number::text), '')
  from generate_series(1, :size_bytes::int / 32) as number
    on conflict (key) do update set value = excluded.value

-- name: forget_probe
delete from perdure.meta
 where key = 'probe'

-- name: notify
-- Send a hint to every listening node.
select pg_notify(:channel::text, :text::text)

-- name: notify_node
-- Send the parts of a message to one node.
select pg_notify(:channel::text, parcel.part)
  from unnest(:parts::text[]) with ordinality as parcel (part, place)
 order by parcel.place

-- name: read_records
-- Records of one kind in the order of their keys, within bounds.
select key, version, due_at, data
  from perdure.record
 where kind = :kind::text
   and namespace = :namespace::text
   and key >= :first::text
   and key > :above::text
   and key < :below::text
 order by key {way}
 limit :most::bigint

-- name: read_payload
select data
  from perdure.payload
 where namespace = :namespace::text
   and reference_id = :reference_id::text

-- name: read_loose_payloads
-- The number and size of uploaded payloads that are not referenced yet, up to a limit.
select count(*), coalesce(sum(loose_bytes), 0)::bigint
  from perdure.payload
 where loose_bytes is not null

-- name: read_items
-- A page of a stream, ended by its number of items or by their size.
select page.item_offset, page.data
  from (select found.item_offset, found.data,
               sum(octet_length(found.data)) over (order by found.item_offset) as size
          from (select item_offset, data
                  from perdure.stream_item
                 where run_id = :run_id::text
                   and stream_name = :stream_name::text
                   and item_offset >= :first::bigint
                   and item_offset < :until::bigint
                 order by item_offset
                 limit :most::bigint) as found) as page
 where page.size <= :bytes_max::bigint
    or page.size = octet_length(page.data)
 order by page.item_offset

-- name: read_record_versions
-- The versions of the given records.
select record.kind, record.namespace, record.key, record.version
  from unnest(:kinds::text[], :namespaces::text[], :keys::text[]) as ids (kind, namespace, key)
  join perdure.record
    on record.kind = ids.kind
   and record.namespace = ids.namespace
   and record.key = ids.key
