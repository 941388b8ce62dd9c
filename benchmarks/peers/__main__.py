"""`python -m benchmarks.peers NAME`: install a peer where it is missing, and print its Python as the last line."""

import sys

from benchmarks.peers import PeerMissing, interpreter

if __name__ == "__main__":
    try:
        print(interpreter(sys.argv[1]))
    except PeerMissing as error:
        sys.exit(str(error))
