"""Vega, Vega-Lite and Vega-Embed as JavaScript, out of vl-convert, which holds them and needs no network.

To put them together takes it more than a second, so the text is kept in the user's own cache.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

from fedscout.engine.runtime.atomic_file import write_atomically

SNIPPET = "window.vegaEmbed = vegaEmbed; window.vega = vega; window.vegaLite = vegaLite;"

SMALLEST = 500_000
"""Characters; less is no Vega."""


@cache
def vega_code() -> str:
    """Return code that defines `vegaEmbed` and may stand in a `<script>`."""
    kept = _cache() / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, ValueError):
        code = kept.read_text(encoding="utf-8")
        if len(code) > SMALLEST and kept.stat().st_uid == os.getuid():
            return code
    import vl_convert

    code = vl_convert.javascript_bundle(SNIPPET).replace("</script", "<\\/script").replace("<!--", "<\\!--")
    with suppress(OSError):  # without it, it is made anew each time
        write_atomically(kept, partial(Path.write_text, data=code, encoding="utf-8"))
    return code


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedscout"
