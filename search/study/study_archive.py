"""Earlier studies in one file, to be kept and handed on without their folders.

A Parquet file, one row a configuration. `study`, `config_hash`, `config`, `data_digest` and `report`, the last two of
JSON, stand in the first row of each study; `specification`, as JSON, and `gain`, its mean gain over FedAvg, in each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedscout.engine.errors import StrategyError
from fedscout.search.study.earlier_studies import EarlierStudy
from fedscout.strategies import StrategySpec, parse_strategy

FORMAT = b"fedscout studies 1"
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("study", "config_hash", "config", "data_digest", "report", "specification")),
        ("gain", pa.float32()),
    ],
    {b"format": FORMAT},
)


def write_studies(path: Path, studies: Iterable[EarlierStudy]) -> None:
    """Write studies to a file; one without a configuration is left out."""
    table = pa.Table.from_pylist([row for study in studies for row in _rows(study)], SCHEMA)
    pq.write_table(table, path, compression="zstd", compression_level=19)


def _rows(study: EarlierStudy) -> Iterator[dict[str, Any]]:
    about = {
        "study": study.name,
        "config_hash": study.config_hash,
        "config": json.dumps(study.config, sort_keys=True),
        "data_digest": study.data_digest,
        "report": json.dumps(study.report, sort_keys=True),
    }
    for place, (spec, gain) in enumerate(study.gains):
        document = json.dumps({"kind": spec.kind, **spec.parameters()})
        yield {**({} if place else about), "specification": document, "gain": gain}


def read_studies(path: Path) -> list[EarlierStudy]:
    """Read studies from a file; a configuration of a strategy that there is no more is left out.

    Raises:
        ValueError: If it is no such file; says why.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"it must be a Parquet file that can be read: {error}") from error
    if (table.schema.metadata or {}).get(b"format") != FORMAT:
        raise ValueError("it must be a file of studies, as `fedscout bench table` writes one")
    found: list[tuple[dict[str, Any], list[tuple[StrategySpec, float]]]] = []
    parsed = cache(lambda document: parse_strategy(json.loads(document)))  # studies share configurations and reports
    read = cache(json.loads)
    for row in table.to_pylist():
        if row["study"] is not None:
            found.append((row, []))
        try:
            found[-1][1].append((parsed(row["specification"]), row["gain"]))
        except StrategyError:  # of another version
            continue
    return [
        EarlierStudy(
            name=row["study"],
            config_hash=row["config_hash"],
            config=json.loads(row["config"]),
            data_digest=row["data_digest"],
            report=read(row["report"]),
            gains=tuple(gains),
        )
        for row, gains in found
    ]
