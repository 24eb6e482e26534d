"""`fedscout embed`: pictures or texts to the features of a trained network, as a data set of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedscout.engine.errors import Fault
from fedscout.experiments.cli.options import AsJson, ConfigFile, Settings, read_settings

Weights = Annotated[
    Path | None,
    typer.Option(
        help="Pictures: of a ResNet-18 by torchvision's names, .safetensors, .pt or .pth. Pictures or texts: any "
        "network, .onnx.",
        show_default=False,
    ),
]
Tokenizer = Annotated[
    Path | None, typer.Option(help="Of texts: the tokenizer.json that goes with the weights.", show_default=False)
]
Random = Annotated[
    int | None, typer.Option("--random", min=0, help="Seed of random weights, in place of a file.", show_default=False)
]
Size = Annotated[int, typer.Option(min=32, max=1024, help="Pixels to which pictures are resized.")]


def embed(
    settings: Settings = None,
    config_file: ConfigFile = None,
    weights: Weights = None,
    tokenizer: Tokenizer = None,
    random: Random = None,
    size: Size = 224,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The file, which is a data set; embedded.npz or random-features.npz if left out.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Embed a data set's pictures or texts by a network of your own weights, once, into a data set of its features."""
    config = read_settings(settings, config_file, verbose=False)
    from fedscout.engine.errors import ConfigurationError

    out = out or Path("random-features.npz" if weights is None else "embedded.npz")
    if out.suffix != ".npz":
        raise ConfigurationError(Fault("--out", "be a file that ends in .npz", out))
    from fedscout.experiments.federations.embeddings.embedded_file import load_to_embed, write_embedded
    from fedscout.experiments.federations.embeddings.embedder import embedder
    from fedscout.experiments.reports.console import show_json
    from fedscout.experiments.visible import show

    by = embedder(weights, tokenizer, random, size)
    dataset, rows = load_to_embed(config.federation)
    is_new = write_embedded(dataset, rows, by, out)
    client = dataset.client_ids is not None
    use = f"federation.dataset={out} federation.label=y" + (" federation.client_column=client" if client else "")
    if as_json:
        show_json({"out": str(out), "rows": dataset.num_rows, "computed": is_new, "by": by.record, "use": use})
        return
    features = "random features, of no trained network" if weights is None else f"features by {weights.name}"
    known = "" if is_new else ", as they were"
    show(f"{dataset.name}: {len(rows)} {by.of} as {features}{known}, in {out}\nUse: fedscout detect {use}")
