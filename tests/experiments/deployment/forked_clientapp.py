"""`flwr-clientapp` as a fork of a process that has imported what a client needs, beside the SuperNode it belongs to.

Flower starts a process for each message to a client, and each spends three processor seconds on importing torch, Flower
and this program: next to all of what a federation of two or three clients costs. So a test whose subject are the
messages has them answered by forks, which begin as such a process does after its imports. What users start, a process
from its first line, is what `test_apps_on_superlink.py` has.

A fork has the environment, the working folder and the output of the SuperNode, as Flower's process does, and bears its
mark. `flwr-clientapp` itself, found first on the node's path, hands its arguments over through a pipe and ends.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HAND_OVER = """\
#!/bin/sh
IFS='\t'
echo "$*" > {pipe}
"""


def with_forked_clients(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> list[str]:
    """Return a command that starts a SuperNode whose clients are forks; what both need is put into the folder."""
    pipe, program = folder / "messages", folder / "bin" / "flwr-clientapp"
    os.mkfifo(pipe)
    program.parent.mkdir()
    program.write_text(HAND_OVER.format(pipe=shlex.quote(str(pipe))))
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{environment['PATH']}"
    forks = shlex.join([sys.executable, "-m", __name__, str(pipe)])
    return ["sh", "-c", f"{forks} & PATH={shlex.quote(path)} exec {shlex.join(command)}"]


def serve(pipe: Path) -> None:
    """Fork for each line of arguments; return in the fork, with its arguments in place."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with open(os.open(pipe, os.O_RDWR)) as lines:  # for writing, too, so that it never ends
        for line in iter(lines.readline, ""):
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                sys.argv = ["flwr-clientapp", *line.rstrip("\n").split("\t")]
                return


if __name__ == "__main__":
    import sklearn.datasets  # noqa: F401
    from flwr.supernode.cli import flwr_clientapp

    import fedscout.detectors
    import fedscout.engine.client.host
    import fedscout.experiments.deployment.client
    import fedscout.experiments.federation  # noqa: F401

    serve(Path(sys.argv[1]))
    sys.exit(flwr_clientapp())
