"""Runs a module as `python -m` does, and ends when the process that started it is gone.

    python -m paxkv.sweeps.guarded MODULE ARGUMENTS...

Standard input must be a pipe that only the starter holds: however that one ends, kill -9
included, the pipe is closed, and this process ends. If it leads a group, all of that does.
"""

import os
import runpy
import signal
import sys
import threading


def end_with_the_pipe(descriptor: int) -> None:
    """Waits until nobody holds the pipe's other end."""
    while os.read(descriptor, 4096):
        pass
    if os.getpgrp() == os.getpid():  # else the group is somebody else's
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Runs the module; `arguments` are its name and its own."""
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the module finds no input, and cannot read the pipe empty
    os.close(nothing)
    threading.Thread(target=end_with_the_pipe, args=(pipe,), daemon=True).start()
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
