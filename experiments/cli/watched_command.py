"""A command line that ends with the server that started it, however that one ended.

Standard input is a pipe into which nobody writes, and whose other end the server alone holds. It can be read to its end
when the server has let go of it or is gone, though it be killed; then the command is told to end, in good order.
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
