"""Programs in fresh processes that have torch and offpcc imported already: these are forked from one that has.

To import both takes two seconds of a processor, for each process that does so.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 900  # seconds


class Forks:
    """A process that has imported them, and is forked for each program."""

    def __init__(self):
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"},
        )  # fmt: skip

    def run(self, code, folder, environment):
        """Do what `python -c CODE` does in a folder; the exit code, and what is told."""
        told = folder / "told.txt"
        print(json.dumps([code, str(folder), str(told), environment]), file=self.server.stdin, flush=True)
        return int(self.server.stdout.readline()), told.read_text(encoding="utf-8")

    def launch(self, words, folder, environment):
        """Do what the command line does with these words in a folder; the exit code, and what is told."""
        code = f"import sys\nfrom offpcc.launch import main\nsys.exit(main({[*map(str, words)]}))"
        return self.run(code, folder, environment)

    def close(self):
        self.server.stdin.close()
        self.server.wait(60)


def execute(code, folder, told, environment):
    """Do in a forked process what the interpreter does with code; the exit code."""
    signal.alarm(PATIENCE)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = ""  # in place of this file's folder
    sys.path[1:1] = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
    sys.argv[:] = ["-c"]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), vars(module))
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main():
    """Fork for each line of the standard input, and tell how each process ended."""
    import tensorboard.summary

    import offpcc.training.fit
    from offpcc import launch

    assert launch.ALGORITHMS and launch.ENVIRONMENTS and offpcc.training.fit and tensorboard.summary
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            sys.exit(execute(*json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
