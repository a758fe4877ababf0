"""What the tests of `--jobs` run in other processes; it imports nothing that takes long."""

import os
import time

from offpcc.utils import signals


def end(code=0, number=0):
    """Run in another process."""
    print("a line\nanother, without an end", end="")
    if number:
        os.kill(os.getpid(), number)
    return code


def wait(seconds):
    """Run in another process."""
    time.sleep(seconds)
    return 0


def be_interrupted(folder, is_late):
    """Run in another process until it is asked to stop."""
    try:
        (folder / str(is_late)).touch()
        time.sleep(300)
    except signals.Interrupted as stop:
        stop.is_late = is_late
        raise


def wait_for_files(folder, number):
    """Run in another process until there are so many files."""
    while len([*folder.iterdir()]) < number:
        time.sleep(0.05)
    return 0


def in_folder(name, **given):
    return globals()[name](**given)
