"""The `fedscout` process, which shuts down gracefully on signals.

Signal handlers are installed before the commands (`program.py`) are imported, which can take a second.

A command that a server (`agents.py`) starts with `--end-with-input` ends with the server, even if that was killed:
standard input is a pipe that is never written to and whose other end only the server holds. Reading reaches the end of
the pipe when the server closes it or exits; the command is then terminated by SIGTERM, which it handles gracefully.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from fedscout.engine.runtime.processes import ENDING_SIGNALS, ended_by_signals, signal_exit
from fedscout.experiments.text import tell


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, by default the process's own arguments, and exit."""
    with ended_by_signals() as signals:
        code = _exit_code(arguments, signals)
    if signals or arguments is None:  # Python's end restores default handlers, by which one more would kill the process
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    exec("")  # noqa: S102 - or Python, run by -m, dies of SIGINT at its end, if that interrupted such an `exec`
    sys.exit(code)


def _exit_code(arguments: Sequence[str] | None, signals: Sequence[int]) -> int:
    try:
        from fedscout.experiments.cli.program import exit_code

        return exit_code(arguments, signals)
    except BaseException:
        if not signals:
            raise
    code, line = signal_exit(signals[0])
    with suppress(OSError):  # the terminal may be gone
        tell(line)
    return code


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--end-with-input"]:
        del sys.argv[1]
        threading.Thread(target=_end_with_input, daemon=True).start()
    main()
