-- Queries of operators about queues: ready and leased tasks. All of them are bounded.

-- name: read_queues
-- Queues with ready tasks of the given kinds, by name: one index step for each.
with recursive step (place, queue) as (
    select 1, (select min(queue) from ready where namespace = :namespace)
    union all
    select step.place + 1, (select min(ready.queue)
                              from ready
                             where ready.namespace = :namespace
                               and ready.queue > step.queue)
      from step
     where step.queue is not null
       and step.place < :most
)
select step.queue
  from step
 where exists (select 1
                 from ready
                where ready.namespace = :namespace
                  and ready.queue = step.queue
                  and ready.kind in (select value from json_each(:kinds)))
 order by step.queue

-- name: read_backlog
-- How many tasks are ready on the given queues, up to a bound, and since when the oldest is. The
-- index sorts by priority, so the oldest is one of the first of each priority. Rows are identified
-- by the positions of queue and kind in the parameters.
select queues.key, kinds.key,
       (select count(*)
          from (select 1
                  from ready
                 where ready.namespace = :namespace
                   and ready.queue = queues.value
                   and ready.kind = kinds.value
                 order by ready.priority, ready.available_at, ready.run_id, ready.place
                 limit :most)),
       (select min((select min(ready.available_at)
                      from ready
                     where ready.namespace = :namespace
                       and ready.queue = queues.value
                       and ready.kind = kinds.value
                       and ready.priority = priorities.value))
          from json_each(:priorities) as priorities)
  from json_each(:queues) as queues
 cross join json_each(:kinds) as kinds

-- name: count_leased_runs
-- How many workflow tasks are leased to the given workers, up to a bound for all of them.
select held.task_owner, count(*)
  from (select run.task_owner
          from run indexed by run_task_owner_idx
         where run.task_owner in (select value from json_each(:owners))
           and run.namespace = :namespace
         order by run.task_owner
         limit :most) as held
 group by held.task_owner

-- name: count_leased_operations
-- How many activities are leased to the given workers, up to a bound for all of them.
select held.lease_owner, count(*)
  from (select operation.lease_owner
          from operation indexed by operation_lease_owner_idx
          join run on run.run_id = operation.run_id
         where operation.lease_owner in (select value from json_each(:owners))
           and run.namespace = :namespace
         order by operation.lease_owner
         limit :most) as held
 group by held.lease_owner

-- name: read_leased_runs
-- Some runs whose workflow task is leased to one of the given workers.
select {run_columns}
  from run indexed by run_task_owner_idx
 where task_owner in (select value from json_each(:owners))
   and namespace = :namespace
 order by task_owner, run_id
 limit :most

-- name: read_leased_operations
-- Some activities that are leased to one of the given workers, with their runs.
select run.run_id, run.namespace, run.workflow_id, run.workflow_type, run.queue, run.run_number,
       run.started_at, run.status, run.closed_at, run.version, run.task_owner, run.state,
       operation.sequence, operation.data
  from operation indexed by operation_lease_owner_idx
  join run on run.run_id = operation.run_id
 where operation.lease_owner in (select value from json_each(:owners))
   and run.namespace = :namespace
 order by operation.lease_owner, operation.run_id, operation.sequence
 limit :most
