r"""Terminal output of untrusted text, and imports of optional packages.

Names of classes and columns, error messages, logs and arguments are untrusted, and a terminal executes escape
sequences, which can move the cursor, rename the window or overwrite output. All output of commands, except JSON, which
is ASCII, therefore goes through `visible`: control characters (C0 except line break and tab, DEL, C1), bidirectional
marks, Unicode line separators and lone surrogates, which no encoding can write, are escaped as in Python source:
`\x1b`, `\u202e`.

Optional packages are installed by extras of the package.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime.files import with_addresses

LONGEST_WORD = 240
LONGEST_LINE = 3000

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LINE_BREAK = re.compile(r"\s*\n\s*")
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def visible(text: str) -> str:
    """Return a text with control characters escaped; line breaks and tabs are kept."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), with_addresses(text))


def visible_line(text: str) -> str:
    """Return a text as one readable line: no line breaks, long words and long lines truncated."""
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
    """Print JSON, which is ASCII, on standard output; only DEL needs escaping."""
    print(with_addresses(text).replace("\x7f", "\\u007f"))


def tell(line: str) -> None:
    """Print a message on standard error, on one line."""
    print(f"fedscout: {visible_line(line)}", file=sys.stderr, flush=True)


def extra_module(module: str, extra: str, subject: object) -> Any:
    """Return an imported module of an optional package.

    Args:
        module: Name of the module.
        extra: Extra that installs its package.
        subject: What needs it, for the message.

    Raises:
        ConfigurationError: If it is not installed; the message says how to install it.
    """
    if find_spec(module.partition(".")[0]) is None:
        problem = f"needs the package {module}, which is not installed"
        raise ConfigurationError.of(subject, problem=problem, hint=f"pip install 'fedscout[{extra}]'")
    return import_module(module)
