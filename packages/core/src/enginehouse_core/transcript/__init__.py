"""The record of one session, and the only truth about it: `transcript.jsonl` with its `blobs/` beside it."""
