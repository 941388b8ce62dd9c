"""Our speed, alone and against peers: `python -m benchmarks`, described in docs/benchmarks.md."""
