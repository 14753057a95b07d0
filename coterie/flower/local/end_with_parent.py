"""`python end_with_parent.py PID PROGRAM ARGUMENTS...`: run a program that Linux kills when process PID ends.

This is a separate file, since Python code between fork and exec may block in a process with threads. On systems other
than Linux the program keeps running if its parent is killed.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask Linux to kill this process with its parent, then replace it by the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has already ended
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
