-- Every order that lists of push runs have rides an index. What changes with a run has one of runs
-- that are over, and what is open is found by another: it is little. On a large table they can be
-- made beforehand, concurrently.
-- needs: 1
create index if not exists run_push_workflow_idx
    on perdure.run (namespace, workflow_type, started_at, run_id)
    where workflow_id = run_id;
create index if not exists run_push_app_idx on perdure.run (namespace, queue, started_at, run_id)
    where workflow_id = run_id;
create index if not exists run_push_status_idx on perdure.run (
    namespace,
    (case status
         when 'completed' then 'succeeded'
         when 'terminated' then 'cancelled'
         else status
     end collate ucs_basic),
    started_at, run_id
) where workflow_id = run_id and closed_at is not null;
create index if not exists run_push_duration_idx
    on perdure.run (namespace, (closed_at - started_at), started_at, run_id)
    where workflow_id = run_id and closed_at is not null;
create index if not exists run_push_open_idx on perdure.run (namespace, started_at, run_id)
    where workflow_id = run_id and closed_at is null;
