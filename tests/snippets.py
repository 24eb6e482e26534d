"""The blocks of README and docs, and the `fedscout` commands that stand in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

PAGES = (*(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")), *sorted((REPOSITORY / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(fedscout (?:bench )?[a-z][\w-]*)\b[^`]*`")
COMMAND = re.compile(r"(?:^|[\s/])fedscout ([a-z].*)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    text: str

    @property
    def commands(self) -> Iterator[str]:
        """What follows `fedscout` in lines for a shell, long lines joined, comments and quotes around it left out."""
        for line in self.text.replace("\\\n", " ").splitlines() if self.language in ("", "sh", "bash") else ():
            if found := COMMAND.search(line):
                command = re.split(r"\s{2,}#|\s# ", found[1])[0].strip()
                yield command.removesuffix("'") if command.count("'") % 2 else command


def blocks() -> list[Block]:
    """Return all blocks of all pages."""
    return [Block(page.name, *found) for page in PAGES for found in BLOCK.findall(page.read_text())]


def commands() -> list[tuple[str, str]]:
    """Return page and arguments of every command."""
    return [(block.page, command) for block in blocks() for command in block.commands]


def arguments(command: str) -> list[str]:
    """Return a command's arguments; of a synopsis such as `[--quick] [KEY=VALUE ...]` all that may stand."""
    synopsis = re.search(r"(?:^| )\[(?:--|KEY)", command) is not None
    plain = re.sub(r"(?<!=)[\[\]]| \.\.\.|\bKEY=VALUE\b", " ", command) if synopsis else command
    return shlex.split(plain)


def missing_files(given: list[str], folder: Path) -> Iterator[Path]:
    """Yield the YAML files that a command reads, where they would lie in a folder."""
    for argument in given:
        if argument.endswith((".yaml", ".yml")) and "=" not in argument:
            yield folder / argument
