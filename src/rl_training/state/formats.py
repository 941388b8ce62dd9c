"""The format number of run directories and checkpoints; docs/formats.md says what each number means."""

FORMAT = 2
FIRST_COVERED = (
    2  # from this number on every line of metrics.jsonl carries a hash, and the manifest a checksum
)
