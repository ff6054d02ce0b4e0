-- Checksums of histories, 128 bits of BLAKE2b over each chunk. Rows from before have none.
alter table history add column digest blob;
