"""What each part of a study cost."""

from __future__ import annotations

import altair as alt
import pandas as pd

from fedscout.experiments.chart_style import BLUE, inline, tooltips

ROW = 26


def trial_costs(parts: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw rounds by part of the study.

    Args:
        parts: A row a part with `part`, `trainings`, `rounds`, `megabytes` and `seconds`.
    """
    chart: alt.Chart = (
        alt.Chart(inline(parts.to_dict("records")))
        .mark_bar(color=BLUE, cornerRadiusEnd=2)
        .encode(
            x=alt.X("rounds:Q", title="rounds", axis=alt.Axis(tickCount=6)),
            y=alt.Y("part:N", sort=None, title=None),
            tooltip=tooltips(
                part="part",
                trainings__Q="trainings",
                rounds__Q="rounds",
                megabytes__Q="MB sent and received",
                seconds__Q="seconds of trials",
            ),
        )
        .properties(height=ROW * len(parts))
    )
    return chart
