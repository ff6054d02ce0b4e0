-- Queries of operators about queues: ready and leased tasks. All of them are bounded.

-- name: read_queues
-- Queues with ready tasks of the given kinds, by name: one index step for each.
with recursive step (place, queue) as (
    select 1, (select min(queue) from perdure.ready where namespace = :namespace::text)
    union all
    select step.place + 1, (select min(ready.queue)
                              from perdure.ready
                             where ready.namespace = :namespace::text
                               and ready.queue > step.queue)
      from step
     where step.queue is not null
       and step.place < :most::bigint
)
select step.queue
  from step
 where exists (select 1
                 from perdure.ready
                where ready.namespace = :namespace::text
                  and ready.queue = step.queue
                  and ready.kind = any(:kinds::text[]))
 order by step.queue

-- name: read_backlog
-- How many tasks are ready on the given queues, up to a bound, and since when the oldest is. The
-- index sorts by priority, so the oldest is one of the first of each priority.
select queues.queue, kinds.kind, waiting.number, oldest.available_at
  from unnest(:queues::text[]) as queues (queue)
 cross join unnest(:kinds::text[]) as kinds (kind)
 cross join lateral (
    select count(*) as number
      from (select 1
              from perdure.ready
             where ready.namespace = :namespace::text
               and ready.queue = queues.queue
               and ready.kind = kinds.kind
             order by ready.priority, ready.available_at, ready.run_id, ready.place
             limit :most::bigint) as counted
 ) as waiting
 cross join lateral (
    select min((select min(ready.available_at)
                  from perdure.ready
                 where ready.namespace = :namespace::text
                   and ready.queue = queues.queue
                   and ready.kind = kinds.kind
                   and ready.priority = priorities.priority)) as available_at
      from unnest(:priorities::bigint[]) as priorities (priority)
 ) as oldest

-- name: count_leased_runs
-- How many workflow tasks are leased to the given workers, up to a bound for all of them.
select held.task_owner, count(*)
  from (select open_run.task_owner
          from perdure.open_run
          join perdure.run on run.run_id = open_run.run_id
         where open_run.task_owner = any(:owners::text[])
           and run.namespace = :namespace::text
         order by open_run.task_owner
         limit :most::bigint) as held
 group by held.task_owner

-- name: count_leased_operations
-- How many activities are leased to the given workers, up to a bound for all of them.
select held.lease_owner, count(*)
  from (select operation.lease_owner
          from perdure.operation
          join perdure.run on run.run_id = operation.run_id
         where operation.lease_owner = any(:owners::text[])
           and run.namespace = :namespace::text
         order by operation.lease_owner
         limit :most::bigint) as held
 group by held.lease_owner

-- name: read_leased_runs
-- Some runs whose workflow task is leased to one of the given workers.
select {run_columns}
  from perdure.open_run
  join perdure.run on run.run_id = open_run.run_id
 where open_run.task_owner = any(:owners::text[])
   and run.namespace = :namespace::text
 order by open_run.task_owner, run.run_id
 limit :most::bigint

-- name: read_leased_operations
-- Some activities that are leased to one of the given workers, with their runs.
select {run_columns}, operation.sequence, operation.data
  from perdure.operation
  join perdure.run on run.run_id = operation.run_id
  join perdure.open_run on open_run.run_id = operation.run_id
 where operation.lease_owner = any(:owners::text[])
   and run.namespace = :namespace::text
 order by operation.lease_owner, operation.run_id, operation.sequence
 limit :most::bigint
