-- Closed runs in the order in which they closed, apart for those for which runners are invoked: each
-- sort has a retention of its own. On a large table they can be made beforehand, concurrently.
-- needs: 1
create index if not exists run_closed_idx on perdure.run (namespace, closed_at, run_id)
    where closed_at is not null and workflow_id <> run_id;
create index if not exists run_push_closed_idx on perdure.run (namespace, closed_at, run_id)
    where closed_at is not null and workflow_id = run_id;
-- The run that a command was answered by; none in what was written before.
alter table perdure.receipt add column run_id text collate ucs_basic;
create index receipt_run_idx on perdure.receipt (run_id) where run_id is not null;
