-- Checksums of histories, 128 bits of BLAKE2b over each chunk. Rows from before have none.
-- needs: 1
alter table perdure.history add column digest bytea;
