-- Every order that lists of push runs have rides an index. What changes with a run has one of runs
-- that are over: open ones are few, and their steps shall not move entries of an index.
alter table run add column shown_status text generated always as (
    case status
        when 'pending' then 'queued'
        when 'completed' then 'succeeded'
        when 'terminated' then 'cancelled'
        else status
    end
) virtual;
alter table run add column lasted integer generated always as (closed_at - started_at) virtual;
create index run_push_workflow_idx on run (namespace, workflow_type, started_at, run_id)
    where workflow_id = run_id;
create index run_push_app_idx on run (namespace, queue, started_at, run_id)
    where workflow_id = run_id;
create index run_push_status_idx on run (namespace, shown_status, started_at, run_id)
    where workflow_id = run_id and closed_at is not null;
create index run_push_duration_idx on run (namespace, lasted, started_at, run_id)
    where workflow_id = run_id and closed_at is not null;
create index run_push_open_idx on run (namespace, started_at, run_id)
    where workflow_id = run_id and closed_at is null;
