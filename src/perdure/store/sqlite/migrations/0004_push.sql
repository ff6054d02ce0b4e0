-- Runs for which runners are invoked are listed by themselves. Nobody names them, so each is its own
-- workflow id, and no other run is.
create index run_push_idx on run (namespace, started_at, run_id) where workflow_id = run_id;
