"""`fedscout init`: five questions, and the file of a study that answers them."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from fedscout.engine.errors import Fault
from fedscout.experiments.cli.options import prepare
from fedscout.experiments.visible import tell, visible

OutFile = Annotated[Path, typer.Option("--out", "-o", help="The file that is written.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing and take what is suggested.")]
Data = Annotated[str | None, typer.Argument(metavar="[DATA]", help="A file, or the name of a data set.")]

DEALT = "-"


def init(data: Data = None, out: OutFile = Path("study.yaml"), yes: Yes = False) -> None:
    """Ask five questions, suggest the answers, and write a study that `fedscout run` runs. Piped, it asks nothing."""
    prepare(verbose=False)
    from fedscout.engine.errors import ConfigurationError
    from fedscout.engine.runtime.atomic_file import write_atomically
    from fedscout.experiments.config.config_file import load_config
    from fedscout.experiments.config.study_draft import AIMS, TIMES, Draft, suggested_data, table_suggestions

    if out.exists():
        raise ConfigurationError(Fault("--out", "be a new file", f"{out}, which exists"))
    asks = not yes and sys.stdin.isatty()
    dataset = data or _answer(asks, "The data: a file, or the name of a data set", suggested_data())
    head = table_suggestions(dataset)
    label = client = None
    if head is not None:
        label = _answer(asks, "The column to predict", head.label, head.columns)
        others = [column for column in head.columns if column != label]
        suggested = head.client if head.client in others else DEALT
        wanted = f"The column of the clients ({DEALT}: rows are dealt to ten)"
        named = _answer(asks, wanted, suggested or DEALT, [DEALT, *others])
        client = None if named == DEALT else named
    what = "; ".join(f"{aim}: {meaning}" for aim, (meaning, _) in AIMS.items())
    aim = _answer(asks, f"What matters ({what})", "accuracy", AIMS)
    time = _answer(asks, "How long it may take", "hour", TIMES)
    text = Draft(dataset, label, client, cast(Any, aim), cast(Any, time)).text
    write_atomically(out, lambda path: path.write_text(text, encoding="utf-8"))
    try:
        load_config((), out)
    except ConfigurationError:
        out.unlink()
        raise
    print(visible(text), end="")
    tell(f"{out} is written: fedscout run {out}")


def _answer(asks: bool, question: str, suggested: str, allowed: Collection[str] = ()) -> str:
    """Return what is answered, or what is suggested where nobody is asked; asks again until it is allowed."""
    while asks:
        given = str(typer.prompt(question, default=suggested, err=True)).strip()
        if not allowed or given in allowed:
            return given
        from fedscout.engine.fault_text import did_you_mean, listed

        tell(f"it must be one of {listed(allowed)}, got {given!r}{did_you_mean(given, allowed)}")
    return suggested
