-- Closed runs in the order in which they closed, apart for those for which runners are invoked: each
-- sort has a retention of its own.
create index run_closed_idx on run (namespace, closed_at, run_id)
    where closed_at is not null and workflow_id <> run_id;
create index run_push_closed_idx on run (namespace, closed_at, run_id)
    where closed_at is not null and workflow_id = run_id;
-- The run that a command was answered by; none in what was written before.
alter table receipt add column run_id text;
create index receipt_run_idx on receipt (run_id) where run_id is not null;
