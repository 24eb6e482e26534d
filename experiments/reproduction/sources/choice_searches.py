"""What searches do on the bearing scenarios: Figures 8 to 10, and mutation rates."""

from __future__ import annotations

from itertools import product

from fedscout.experiments.reproduction.chosen_cells import (
    ChosenCells,
    Searched,
    SearchedByModel,
)
from fedscout.experiments.reproduction.fifty_trials import FiftyTrials
from fedscout.experiments.reproduction.published_study import (
    Ordering,
    PublishedStudy,
)
from fedscout.experiments.reproduction.sources.choice_federations import (
    BEARING_NOTE,
    BEARINGS,
    FIFTY,
    GENETIC,
    MODEL_NOTE,
    at_both,
)

_KINDS = ("fedmedian", "fedtrimmedavg", "krum", "multikrum", "fedavg", "fedprox", "fedadam")

FIGURE_10 = PublishedStudy(
    name="fig10",
    title="the best of fifty trials by strategy",
    rows=_KINDS,
    columns=("corrupted client", "label poisoning"),
    measurements=at_both(
        lambda seeds: FiftyTrials(
            {name: BEARINGS[name] for name in ("corrupted client", "label poisoning")}, FIFTY, _KINDS, seeds
        ),
        5,
    ),
    orderings=(
        *(
            Ordering(("fedmedian", "corrupted client"), (other, "corrupted client"), "the median is best")
            for other in ("fedtrimmedavg", "krum", "fedavg")
        ),
        Ordering(("fedtrimmedavg", "corrupted client"), ("krum", "corrupted client"), "trimmed mean above Krum"),
        *(
            Ordering(("krum", "label poisoning"), (other, "label poisoning"), "Krum is best")
            for other in ("fedmedian", "fedtrimmedavg", "fedavg")
        ),
    ),
    notes=(BEARING_NOTE, "Trials of a search, on the search's own seed: the best of many flatters."),
)

_RATES = ("0", "0.5", "1")

MUTATION = PublishedStudy(
    name="mutation",
    title="the genetic search by its mutation rate",
    rows=tuple(f"rate {rate}" for rate in _RATES),
    columns=("label skew", "label poisoning"),
    steps="rows",
    measurements=at_both(
        lambda seeds: ChosenCells(
            {name: BEARINGS[name] for name in ("label skew", "label poisoning")},
            {
                f"rate {rate}": Searched(("search.kind=genetic", "search.budget=8", f"search.mutation_rate={rate}"))
                for rate in _RATES
            },
            seeds,
        ),
        10,
    ),
    orderings=tuple(
        Ordering(("rate 1", column), (f"rate {rate}", column), "all children mutants is best")
        for column, rate in product(("label skew", "label poisoning"), _RATES[:-1])
    ),
    notes=(BEARING_NOTE, "The source prints no numbers; a lower rate mixes in random configurations."),
)

MULTI_SHOT = PublishedStudy(
    name="fig8",
    also=("fig9",),
    title="a language model that sees its earlier trials, and one that begins a genetic search",
    rows=("genetic", "multi-shot", "hybrid"),
    columns=("label skew", "label poisoning"),
    measurements=at_both(
        lambda seeds: ChosenCells(
            {name: BEARINGS[name] for name in ("label skew", "label poisoning")},
            {
                "genetic": GENETIC,
                "multi-shot": SearchedByModel(("search.kind=multishot_llm", "search.budget=8")),
                "hybrid": SearchedByModel(("search.kind=llm_genetic", "search.budget=8")),
            },
            seeds,
        ),
        5,
    ),
    orderings=tuple(
        ordering
        for column in ("label skew", "label poisoning")
        for ordering in (
            Ordering(("genetic", column), ("multi-shot", column), "its trials fluctuate without a trend"),
            Ordering(("genetic", column), ("hybrid", column), "hybrid is no better than genetic", "level"),
        )
    ),
    notes=(BEARING_NOTE, MODEL_NOTE),
)
