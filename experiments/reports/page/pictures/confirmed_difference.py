"""The confirmation: mean difference with its two intervals, and the difference of every seed."""

from __future__ import annotations

import altair as alt
import pandas as pd

from fedscout.experiments.chart_style import BLUE, ORANGE, inline, tooltips

ROW = 64


def confirmed_difference(
    means: pd.DataFrame, seeds: pd.DataFrame, unit: str, wider: str = "new data"
) -> alt.TopLevelMixin:
    """Draw a row a comparison.

    Args:
        means: A row a comparison with `against`, `mean`, and `low`, `high`, `here_low`, `here_high`, NaN where there is
            no interval, all in the unit.
        seeds: A row a comparison and seed with `against`, `seed` and `difference`.
        unit: Of the differences.
        wider: What the wider interval is for.
    """
    base = alt.Chart(inline(means.to_dict("records")))
    down = alt.Y("against:N", sort=None, title=None, axis=alt.Axis(labelLimit=130, labelFontSize=12))
    told = tooltips(
        against="compared with",
        mean__Q=f"mean ({unit})",
        low__Q=f"{wider}, from",
        high__Q="to",
        here_low__Q="another run, from",
        here_high__Q="to ",
    )
    across = alt.X("low:Q", title=f"gain, {unit}", scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickCount=6))
    beyond = base.mark_rule(size=2, color=BLUE).encode(across, down, x2="high:Q", tooltip=told)
    here = base.mark_rule(size=8, color=BLUE, opacity=0.45).encode(
        alt.X("here_low:Q"), down, x2="here_high:Q", tooltip=told
    )
    mean = base.mark_point(size=110, filled=True, color=BLUE, shape="diamond", opacity=1).encode(
        alt.X("mean:Q"), down, tooltip=told
    )
    each = (
        alt.Chart(inline(seeds.to_dict("records")))
        .mark_tick(size=16, thickness=2, color=ORANGE, yOffset=18)
        .encode(
            alt.X("difference:Q"),
            down,
            tooltip=tooltips(against="compared with", seed="seed", difference__Q=f"difference ({unit})"),
        )
    )
    zero = alt.Chart(inline([{"zero": 0.0}])).mark_rule(strokeDash=[4, 4]).encode(x="zero:Q")
    return alt.layer(zero, beyond, here, mean, each).properties(height=ROW * len(means))
