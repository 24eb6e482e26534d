"""Two tables as people have them, which nobody prepared: tweets and patients."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

WORDS = ("flight", "late", "crew", "thank", "you", "bag", "seat", "gate", "again", "lost", "hours", "help")


def tweets() -> pd.DataFrame:
    """Return tweets on airlines: identifiers, dates with zones, free text, empty cells, a reason that is a leak."""
    draw = np.random.default_rng(1)
    num_rows = 240
    moods = draw.choice(["negative", "neutral", "positive"], num_rows, p=[0.5, 0.25, 0.25])
    reasons = draw.choice(["Late Flight", "Lost Luggage"], num_rows)
    start = datetime(2015, 2, 24, 11, 35, 52)
    return pd.DataFrame(
        {
            "tweet_id": [
                570306133677760513 - number for number in draw.permutation(num_rows * 1000)[:num_rows].tolist()
            ],
            "airline_sentiment": moods,
            "negativereason": np.where(moods == "negative", reasons, ""),
            "airline": draw.choice(["United", "Delta", "Virgin America"], num_rows),
            "airline_sentiment_gold": ["negative"] + [""] * (num_rows - 1),
            "name": [f"user{number}" for number in draw.integers(0, 1000, num_rows)],
            "retweet_count": draw.integers(0, 4, num_rows),
            "text": [f"@air {' '.join(draw.choice(WORDS, 9))} {row}" for row in range(num_rows)],
            "tweet_coord": [""] * num_rows,
            "tweet_created": [
                (start - timedelta(minutes=37 * row)).strftime("%Y-%m-%d %H:%M:%S -0800") for row in range(num_rows)
            ],
            "user_timezone": draw.choice(["Eastern Time (US & Canada)", "Pacific Time (US & Canada)", ""], num_rows),
        }
    )


def patients() -> pd.DataFrame:
    """Return patients: identifiers, days, a code written down after the outcome, a note that all share."""
    draw = np.random.default_rng(2)
    num_rows = 200
    died = draw.random(num_rows) < 0.3
    days = [datetime(2020, 1, 1) + timedelta(days=int(day)) for day in draw.integers(0, 900, num_rows)]
    return pd.DataFrame(
        {
            "patient_id": 10_000 + 7 * draw.permutation(num_rows),
            "hospital": [f"h{row % 3}" for row in range(num_rows)],
            "age": draw.integers(20, 90, num_rows),
            "sex": draw.choice(["m", "f"], num_rows),
            "admitted": [day.strftime("%d.%m.%Y") for day in days],
            "smoker": draw.choice(["yes", "no", "NA"], num_rows),
            "lab": np.round(draw.normal(1 + died, 1), 2),
            "discharge_code": np.where(died, "X9", draw.choice(["A1", "A2"], num_rows)),
            "ward": ["general"] * num_rows,
            "outcome": np.where(died, "died", "well"),
        }
    )


def saved(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV."""
    table.to_csv(path, index=False)
    return path
