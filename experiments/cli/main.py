"""The `fedscout` process, which shuts down gracefully on signals.

Signal handlers are installed before the commands (`program.py`) are imported, which can take a second.
"""

from __future__ import annotations

import signal
import sys
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


if __name__ == "__main__":
    main()
