"""`python end_with_parent.py PID PROGRAM ARGUMENTS...`: become a program that Linux kills when process PID ends.

A file of its own, since code between fork and exec of a process with threads may block. On other systems than Linux
the program outlives a parent that is killed without warning.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask to be killed with the parent, then become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
