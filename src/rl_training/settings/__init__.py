"""What a user may write: the fields of every algorithm's config, and how configs are read. Nothing here needs torch."""
