"""Format number and revisions of results; docs/formats.md says what each means."""

FORMAT = 2
# Raised when code that algorithms share computes other numbers than before; an algorithm has `Trainer.revision`.
SHARED_REVISION = 2
# The same of convolutions with more than one thread.
CONVOLUTIONS_REVISION = 2
# The same of the first weights of `image_encoder: impala`.
ENCODERS_REVISION = 2
# The same of planners that see frames, with `batch_norm`.
FRAMES_REVISION = 4
# From this format on, every line of metrics.jsonl carries a hash and the manifest a checksum.
FIRST_COVERED = 2
# The metric in the last line of a run that was asked to stop.
STOPPED = "stopped"
# In every line of metrics.jsonl: the digest of the parameters. Lines of earlier versions have none.
DIGEST = "digest"
