"""Programs in fresh processes that have torch and offpcc imported already: these are forked from one that has.

To import both takes two seconds of a processor, for each process that does so.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
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

    def ask(self, *words):
        """What the process answers to these words, the first of which is in `ANSWERS`."""
        print(json.dumps(words), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())

    def start(self, code, folder, environment, errors_apart=True):
        """Begin what `python -c CODE` does in a folder, in a process group of its own."""
        pipes = [os.pipe() for _ in range(2 if errors_apart else 1)]
        files = [f"/proc/{os.getpid()}/fd/{end}" for _, end in pipes]
        child = self.ask("start", code, str(folder), files, dict(environment))
        for _, end in pipes:
            os.close(end)
        return Program(self, child, [start for start, _ in pipes])

    def start_command(self, words, folder, environment, errors_apart=True):
        """Begin what the command line does with these words in a folder."""
        return self.start(of_command(words), folder, environment, errors_apart)

    def run(self, code, folder, environment):
        """Do what `python -c CODE` does in a folder; the exit code, and what is told."""
        told = Path(folder) / "told.txt"
        code = Program(self, self.ask("start", code, str(folder), [str(told)], dict(environment))).wait()
        return code, told.read_text(encoding="utf-8")

    def launch(self, words, folder, environment):
        """Do what the command line does with these words in a folder; the exit code, and what is told."""
        return self.run(of_command(words), folder, environment)

    def close(self):
        self.server.stdin.close()
        self.server.wait(60)


class Program:
    """A program that was begun; it can be used as one of `subprocess.Popen`."""

    def __init__(self, forks, pid, pipes=()):
        self.forks, self.pid, self.returncode = forks, pid, None
        self.told = [None, None]
        self.readers = [threading.Thread(target=self.read, args=pair, daemon=True) for pair in enumerate(pipes)]
        for reader in self.readers:
            reader.start()

    def read(self, number, pipe):
        with open(pipe, encoding="utf-8") as file:  # noqa: PTH123 (this is no path)
            self.told[number] = file.read()

    def poll(self):
        if self.returncode is None:
            self.returncode = self.forks.ask("poll", self.pid)
        return self.returncode

    def wait(self, timeout=PATIENCE):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked program", timeout)
            time.sleep(0.005)
        return self.returncode

    def communicate(self, timeout=PATIENCE):
        """Wait for its end, and that of all that write where it does; the output, and the errors if these are apart."""
        self.wait(timeout)
        for reader in self.readers:
            reader.join(timeout)
        if any(reader.is_alive() for reader in self.readers):
            raise subprocess.TimeoutExpired("what a forked program started", timeout)
        return tuple(self.told)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def of_command(words):
    """Code that does what the command line does with these words."""
    return f"import sys\nfrom offpcc.launch import main\nsys.exit(main({[*map(str, words)]}))"


def execute(code, folder, files, environment):
    """Do in a forked process what the interpreter does with code; the exit code."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # when the process that forked this one ends
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(PATIENCE)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(files[0], 1)
    os.dup2(files[-1], 2)
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


def start(code, folder, files, environment):
    """Fork; the number of the process."""
    opened = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for file in files]
    child = os.fork()
    if child == 0:
        sys.exit(execute(code, folder, opened, environment))
    for file in opened:
        os.close(file)
    return child


def poll(child):
    """How a process ended; None if it runs."""
    ended, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


ANSWERS = {"start": start, "poll": poll}


def main():
    """Answer each line of the standard input."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure
    import tensorboard.summary

    import offpcc.training.fit
    from offpcc import launch

    assert launch.ALGORITHMS and launch.ENVIRONMENTS and offpcc.training.fit and tensorboard.summary
    assert matplotlib.figure and matplotlib.backends.backend_agg  # which draw a run's curve
    for line in sys.stdin:
        name, *words = json.loads(line)
        print(json.dumps(ANSWERS[name](*words)), flush=True)


if __name__ == "__main__":
    main()
