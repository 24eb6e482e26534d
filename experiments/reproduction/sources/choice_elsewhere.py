"""Who chooses on other data: Table 5, Figures 11 and 13."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from fedscout.experiments.reproduction.chosen_cells import (
    Asked,
    Choice,
    ChosenCells,
    Known,
)
from fedscout.experiments.reproduction.published_study import (
    Measurement,
    Ordering,
    PublishedStudy,
    numbers,
)
from fedscout.experiments.reproduction.sources.choice_federations import (
    BEARING_NOTE,
    BEARINGS,
    FEDAVG,
    GENETIC,
    MODEL,
    MODEL_NOTE,
    RULES,
    SIZES,
    TEN_SEEDS,
    at_both,
    cifar,
)
from fedscout.experiments.reproduction.trained_cells import TrainedCells, crossed

_PICTURES = ("federation.num_clients=10", "federation.max_rows=2000", "training.num_rounds=20")
_ELSEWHERE = {
    "bearing, IID": BEARINGS["IID"],
    "CIFAR-10, α 0.1": cifar("0.1", *_PICTURES),
    "CIFAR-10, α 0.5": cifar("0.5", *_PICTURES),
}
_ONE_SHOT: Mapping[str, Choice] = {MODEL: Asked(), RULES: Known("rules"), FEDAVG: Known("FedAvg")}

TABLE_5 = PublishedStudy(
    name="table5",
    title="one answer against FedAvg elsewhere",
    rows=tuple(_ONE_SHOT),
    columns=tuple(_ELSEWHERE),
    measurements=at_both(lambda seeds: ChosenCells(_ELSEWHERE, _ONE_SHOT, seeds), 4),
    published=numbers(
        (MODEL, FEDAVG),
        tuple(_ELSEWHERE),
        ((0.7208, 0.2604, 0.3723), (0.7253, 0.2121, 0.3508)),
        ((0.0200, 0.0115, 0.0278), (0.0261, 0.0266, 0.0153)),
    ),
    orderings=tuple(
        ordering
        for row in (MODEL, RULES)
        for ordering in (
            Ordering(
                (row, "bearing, IID"), (FEDAVG, "bearing, IID"), "nothing to gain where clients are alike", "level"
            ),
            *(Ordering((row, column), (FEDAVG, column), "one answer beats FedAvg") for column in tuple(_ELSEWHERE)[1:]),
        )
    ),
    notes=(
        BEARING_NOTE,
        MODEL_NOTE,
        "The two α of CIFAR-10 were lost from the source's text: 0.1 and 0.5 stand in. 2,000 pictures, LeNet, ten "
        "clients, 20 rounds.",
    ),
)

_SCALING = {
    f"{clients} clients, α {alpha}": cifar(
        alpha, f"federation.num_clients={clients}", "federation.max_rows=2000", "training.num_rounds=12"
    )
    for clients, alpha in product((4, 10, 50), ("0.1", "1"))
}
_SCALERS: Mapping[str, Choice] = {"genetic": GENETIC, MODEL: Asked(), RULES: Known("rules"), FEDAVG: Known("FedAvg")}

FIGURE_11 = PublishedStudy(
    name="fig11",
    title="who chooses, by clients and Dirichlet α",
    rows=tuple(_SCALERS),
    columns=tuple(_SCALING),
    measurements={
        "laptop": ChosenCells(_SCALING, _SCALERS, 2),
        "published": ChosenCells(
            {
                f"{clients} clients, α {alpha}": cifar(
                    alpha,
                    f"federation.num_clients={clients}",
                    f"training.num_rounds={60 if clients == 100 else 40}",
                )
                for clients, alpha in product(SIZES, ("0.1", "0.5", "1", "10"))
            },
            _SCALERS,
            TEN_SEEDS,
        ),
    },
    orderings=tuple(
        ordering
        for column in _SCALING
        for ordering in (
            Ordering(("genetic", column), (FEDAVG, column), "eight trials beat FedAvg at every size"),
            Ordering((MODEL, column), (FEDAVG, column), "so does one answer"),
            Ordering((RULES, column), (FEDAVG, column), "so would the rules' answer"),
        )
    ),
    notes=(
        "The source's values of α were lost: 0.1, 0.5, 1 and 10 stand in. It prints curves. LeNet.",
        MODEL_NOTE,
    ),
    scale_notes={"laptop": ("2,000 pictures, 12 rounds in place of 40, two seeds, no 100 clients.",)},
)

_MODALITIES = {
    "wine quality": (
        "federation.dataset=wine_quality",
        "federation.num_clients=10",
        "federation.partition.alpha=0.5",
        "training.num_rounds=20",
    ),
    "tweets, TextCNN": (
        *("federation.dataset=sentiment140", "federation.max_rows=4000", "federation.num_clients=10"),
        *("federation.partition.alpha=0.5", "model.kind=textcnn", "training.num_rounds=10"),
    ),
}
_MODAL: Mapping[str, Choice] = {"genetic": GENETIC, MODEL: Asked(), RULES: Known("rules"), FEDAVG: Known("FedAvg")}

_PLAYERS = {
    "one client unlike the others": (
        *("federation.dataset=cartpole", "federation.num_clients=4", "training.num_rounds=10"),
        *("federation.physics=[{clients: [2], gravity: 20, pole_length: 0.1}]", "training.repetitions=5"),
    ),
}
_PLAYED = ("fedavg", "fedprox", "fedmedian", "fedtrimmedavg", "krum")


def _by_kind(
    columns: Mapping[str, tuple[str, ...]], kinds: tuple[str, ...], num_seeds: int, *settings: str
) -> Measurement:
    rows = {kind: (f"strategy.kind={kind}", *settings) for kind in kinds}
    return TrainedCells(crossed(columns, rows), num_seeds)


CARTPOLE = PublishedStudy(
    name="cartpole",
    title="CartPole by deep Q-learning, each configuration trained five times",
    rows=_PLAYED,
    columns=tuple(_PLAYERS),
    measurements={
        "laptop": _by_kind(_PLAYERS, _PLAYED, 2),
        "published": _by_kind(_PLAYERS, _PLAYED, 10, "training.num_rounds=30"),
    },
    unit="reward over 500",
    notes=(
        "Part of Figure 13, which prints curves. A number is the median over five trainings of the mean reward over "
        "clients; one client has gravity 20 and a pole of a tenth of the length.",
    ),
    scale_notes={"laptop": ("Ten rounds, two seeds.",)},
)

FIGURE_13 = PublishedStudy(
    name="fig13",
    title="who chooses on other kinds of data",
    rows=tuple(_MODAL),
    columns=tuple(_MODALITIES),
    measurements=at_both(lambda seeds: ChosenCells(_MODALITIES, _MODAL, seeds), 3),
    orderings=tuple(
        Ordering((row, column), (FEDAVG, column), says)
        for column in _MODALITIES
        for row, says in (
            ("genetic", "eight trials beat FedAvg"),
            (MODEL, "so does one answer"),
            (RULES, "so would the rules' answer"),
        )
    ),
    notes=(
        "The source prints curves. Its retinal pictures, glaucoma or healthy by hospital, must be brought "
        "(federation.dataset=retinal) and are not measured here.",
        MODEL_NOTE,
    ),
)

EMBEDDED_TWEETS = "sentiment140-embedded.npz"
_ENCODED_ANYHOW = (
    *(f"federation.dataset={EMBEDDED_TWEETS}", "federation.label=y", "federation.num_clients=10"),
    "model.kind=embedding_classifier",
)
_ENCODED = {
    "IID": (*_ENCODED_ANYHOW, "federation.partition.kind=iid"),
    "α 0.5": (*_ENCODED_ANYHOW, "federation.partition.alpha=0.5"),
}
_ENCODED_BY = ("fedavg", "fedprox", "fedmedian", "fedtrimmedavg", "krum", "fedadam", "fedyogi")

EMBEDDINGS = PublishedStudy(
    name="embeddings",
    title="the negative case: texts as vectors of a trained encoder",
    rows=_ENCODED_BY,
    columns=tuple(_ENCODED),
    measurements={
        "laptop": _by_kind(_ENCODED, _ENCODED_BY, 5, "training.num_rounds=100"),
        "published": _by_kind(_ENCODED, _ENCODED_BY, 10, "training.num_rounds=300"),
    },
    orderings=tuple(
        Ordering((kind, column), ("fedavg", column), "all strategies give one curve", "level")
        for column in _ENCODED
        for kind in _ENCODED_BY[1:]
    ),
    notes=(
        "Part of Figure 13, which prints curves: on texts embedded by TinyBERT all strategies give the same one, even "
        "after 300 rounds; how its clients differed is not known.",
        "Vectors are made of the tweets by an encoder that must be brought, in the folder of the command: fedscout "
        f"embed federation.dataset=sentiment140 --weights FILE --tokenizer FILE --out {EMBEDDED_TWEETS}. Those of the "
        "page are the means of 256 numbers a token that WordLlama 0.4.0 ships (l2_supercat_256.safetensors), no "
        "transformer's.",
    ),
    scale_notes={"laptop": ("100 rounds in place of 300, five seeds.",)},
)
