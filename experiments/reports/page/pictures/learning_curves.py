"""Learning curves of all trials, the chosen ones in front.

A curve of a trial in the background holds at most `MOST_POINTS` of its rounds, evenly spaced with first and last, so
that a page of hundreds of trials stays small; those in front hold all rounds up to `MOST_POINTS_IN_FRONT`.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from fedscout.experiments.chart_style import BLUE, GREEN, GREY, ORANGE, PURPLE, inline, tooltips

MOST_POINTS = 40
MOST_POINTS_IN_FRONT = 400
FRONT_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)


def learning_curves(trials: pd.DataFrame, measure: str) -> alt.TopLevelMixin:
    """Draw a line a trial.

    Args:
        trials: A row a trial with `trial`, `name`, `scores` (one a round), `fitness`, and `role`, empty for the
            background.
        measure: What the scores are of.
    """
    front = trials[trials["role"] != ""]
    back = trials[trials["role"] == ""]
    axis = alt.X(
        "round:Q", title="round", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(tickMinStep=1, grid=False)
    )
    score = alt.Y("score:Q", title=measure, scale=alt.Scale(zero=False))
    roles = sorted(dict.fromkeys(front["role"]), key=lambda role: "FedAvg" in role)  # the pick is blue
    colour = alt.Color(
        "role:N",
        title=None,
        legend=alt.Legend(symbolOpacity=1, columns=2),
        scale=alt.Scale(domain=roles, range=list(FRONT_COLOURS[: len(roles)])),
        sort=None,
    )
    behind = (
        alt.Chart(_curves(back, MOST_POINTS))
        .transform_flatten(["round", "score"])
        .mark_line(color=GREY, opacity=0.35, strokeWidth=1.2)
        .encode(axis, score, detail="trial:N", tooltip=tooltips(trial="trial", name="strategy", fitness__Q="late mean"))
    )
    lines = alt.Chart(_curves(front, MOST_POINTS_IN_FRONT)).transform_flatten(["round", "score"])
    ahead = lines.mark_line(strokeWidth=2.4).encode(axis, score, colour, detail="trial:N")
    points = lines.mark_circle(size=90, opacity=0.001).encode(
        axis,
        score,
        colour,
        tooltip=tooltips(role="trial", name="strategy", round__Q="round", score__Q=measure),
    )
    return alt.layer(behind, ahead, points).properties(height=300)


def thinned(scores: Sequence[float], most: int) -> tuple[list[int], list[float]]:
    """Return rounds, from 1, and their scores: all of them, or so many, first and last included."""
    places = np.unique(np.linspace(0, len(scores) - 1, min(len(scores), most)).round().astype(int)).tolist()
    return [place + 1 for place in places], [float(scores[place]) for place in places]


def _curves(trials: pd.DataFrame, most: int) -> alt.InlineData:
    rows = []
    for trial in trials.to_dict("records"):
        rounds, scores = thinned(trial["scores"], most) if len(trial["scores"]) else ([], [])
        held = {name: trial[name] for name in ("trial", "name", "role", "fitness")}
        rows.append({**held, "round": rounds, "score": scores})
    return inline(rows)
