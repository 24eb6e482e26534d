r"""Text on its way to a terminal: what would steer the terminal is shown instead of obeyed.

Names of classes and columns, error messages, logs and arguments are the work of others, and a terminal obeys what it
is sent: an escape sequence can move the cursor, rename the window or paint over what this program said. So whatever a
command prints, except JSON, which is ASCII, goes through `visible`: control characters (C0 but line break and tab,
DEL, C1), marks that turn the direction of writing, Unicode's own line breaks and lone surrogates, which no encoding
can write, appear as in Python's source: `\x1b`, `\u202e`.

Libraries that not every installation has, as few need them: an extra of the package brings each.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.runtime.storage import with_addresses

LONGEST_WORD = 240
LONGEST_LINE = 3000

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LINE_BREAK = re.compile(r"\s*\n\s*")
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def visible(text: str) -> str:
    """Return a text that a terminal shows and does not obey; line breaks and tabs stay."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), with_addresses(text))


def visible_line(text: str) -> str:
    """Return a text as one line that a person can read: no line break, long words cut, and all of it at last."""
    line = _LONG_WORD.sub(
        lambda found: f"{found[0][:LONGEST_WORD]}… ({len(found[0])} characters)", visible(_LINE_BREAK.sub(" ", text))
    )
    if len(line) <= LONGEST_LINE:
        return line
    tail = LONGEST_LINE // 5
    return f"{line[: LONGEST_LINE - tail]} … ({len(line)} characters) … {line[-tail:]}"


def show(text: str) -> None:
    """Print a result on standard output."""
    print(visible(text))


def show_json_text(text: str) -> None:
    """Print JSON, in ASCII already, on standard output; DEL alone stands in it unescaped."""
    print(with_addresses(text).replace("\x7f", "\\u007f"))


def tell(line: str) -> None:
    """Say something on standard error, on one line."""
    print(f"fedscout: {visible_line(line)}", file=sys.stderr, flush=True)


def extra_module(module: str, extra: str, subject: object) -> Any:
    """Import a module of a library that an extra installs.

    Args:
        module: Its name.
        extra: That brings its library.
        subject: What needs it, for the message.

    Raises:
        ConfigurationError: If it is not installed; says how to install it.
    """
    if find_spec(module.partition(".")[0]) is None:
        problem = f"needs the package {module}, which is not installed"
        raise ConfigurationError(Fault(subject, problem=problem, hint=f"pip install 'fedscout[{extra}]'"))
    return import_module(module)
