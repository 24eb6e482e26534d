"""A command line that ends with the server that started it, even if the server was killed.

Standard input is a pipe that is never written to and whose other end only the server holds. Reading reaches the end of
the pipe when the server closes it or exits; the command is then terminated by SIGTERM, which it handles gracefully.
"""

from __future__ import annotations

import os
import signal
import threading

from fedscout.experiments.cli.main import main

STANDARD_INPUT = 0


def _end_when_left() -> None:
    while os.read(STANDARD_INPUT, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_when_left, daemon=True).start()
    main()
