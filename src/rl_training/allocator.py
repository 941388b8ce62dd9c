"""Keep freed memory for reuse, if the C library supports it."""

from __future__ import annotations

import ctypes

# glibc's names for its settings (malloc.h).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Blocks up to the first size are taken from the heap; the heap's free end stays up to the second.
BLOCK_BYTES, FREE_BYTES = 128 * 2**20, 2**30


def keep_freed_memory() -> bool:
    """Ask malloc not to hand large blocks back to the system when they are freed; whether it agreed.

    An update frees its activations and asks for the same sizes again at once. By default glibc gives such
    blocks back each time, and the kernel clears every page anew: a tenth and more of the time of networks of
    256 units. Results are not touched. Other C libraries have no such setting.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES) and mallopt(M_TRIM_THRESHOLD, FREE_BYTES))
