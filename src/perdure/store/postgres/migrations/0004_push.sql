-- Runs for which runners are invoked are listed by themselves. Nobody names them, so each is its own
-- workflow id, and no other run is.
-- needs: 1
create index run_push_idx on perdure.run (namespace, started_at, run_id)
    where workflow_id = run_id;
