"""What a trained model says of new rows: of a table, a folder of pictures, or rows that are features already.

Rows are read by the description beside the weights (`model_description.py`), so a category that was not seen in
training, a gap and a date become the features that they would have been there. The outputs are those of the trial's own
evaluation, to the bit: the same layers on the same chunks of rows, by one thread.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray
from fedscout.engine.data.client_data import Samples
from fedscout.engine.errors import ConfigurationError, DataError, Fault, LogError, first_line
from fedscout.engine.fault_text import shown
from fedscout.experiments.federations.datasets.images.image_folder import pictures_alone
from fedscout.experiments.federations.datasets.loaders.own_place import ADDRESS, own_place
from fedscout.experiments.federations.datasets.tables.agreed_encoding import encoded_rows
from fedscout.experiments.federations.datasets.tables.table_file import read_frame
from fedscout.experiments.federations.datasets.tables.table_formats import DATABASE_SUFFIXES, read_table
from fedscout.experiments.trained.model_description import ModelDescription, read_description

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

PREDICTION, PICTURE, PROBABILITY = "prediction", "picture", "probability of {}"


@dataclass(frozen=True)
class TrainedModel:
    """A model that a training has left, or one for each group of clients.

    Attributes:
        folder: Where it is.
        description: How rows become its inputs, and what its outputs mean.
        vectors: Parameters and buffers of each model, shape `(models, size)`.
    """

    folder: Path
    description: ModelDescription
    vectors: FloatArray

    def predict(self, rows: str | Path | pd.DataFrame | npt.ArrayLike, group: int | None = None) -> pd.DataFrame:
        """Return what the model says of each row, in order.

        Args:
            rows: The path of a table with the columns of the training, or of a folder of pictures; a DataFrame; or
                features of the model's shape.
            group: Whose model, where each group of clients has one: from 0.

        Returns:
            `prediction`, the name of a class or the quantity in its own unit; of classes also `probability of CLASS`,
            float32 in `[0, 1]`; of pictures also `picture`, the path below the folder.

        Raises:
            UserError: If the rows can't be read, or are not as in the training.
        """
        import pandas as pd

        if (group is None) != (len(self.vectors) == 1) or (group is not None and not 0 <= group < len(self.vectors)):
            wanted = f"be 0 to {len(self.vectors) - 1}" if len(self.vectors) > 1 else "be left out"
            raise ConfigurationError(
                Fault("the group", f"{wanted}, as {self.folder} holds {len(self.vectors)} models", group)
            )
        features, names = self._features(rows)
        outputs = self._outputs(features, self.vectors[group or 0])
        scale, classes = self.description.scale, self.description.class_names
        columns: dict[str, Any] = names
        if scale is not None:
            columns[PREDICTION] = outputs[:, 0].astype(np.float64) * scale.deviation + scale.mean
        else:
            columns[PREDICTION] = np.array(classes, dtype=object)[outputs.argmax(axis=1)]
            columns |= {PROBABILITY.format(name): outputs[:, place] for place, name in enumerate(classes)}
        return pd.DataFrame(columns)

    def _features(self, rows: Any) -> tuple[FloatArray, dict[str, Any]]:
        """Return rows as features, and what names them."""
        import pandas as pd

        if isinstance(rows, pd.DataFrame):
            return self._encoded("DataFrame", read_frame(rows, ())), {}
        if not isinstance(rows, str | Path):
            return self.description.checked_features(rows), {}
        given = Path(rows).expanduser()
        if not ADDRESS.match(str(rows)) and not given.exists():
            raise DataError(Fault("the rows", "be the path of a table or of a folder of pictures", shown(str(rows))))
        if given.is_dir():
            return self._pictures(given)
        query = self.description.rows.query if str(rows).lower().endswith(DATABASE_SUFFIXES) else None
        name = str(rows) if ADDRESS.match(str(rows)) else str(given.absolute())
        request = self.description.rows.model_copy(update={"dataset": name, "max_rows": None, "query": query})
        place = own_place(request)
        if isinstance(place, list):
            raise DataError(Fault("the rows", "be those of one table", shown(str(rows))))
        return self._encoded(str(rows), read_table(place, request).rows), {}

    def _encoded(self, name: str, table: Any) -> FloatArray:
        if self.description.encoding is None:
            shape = ", ".join(map(str, self.description.feature_shape))
            raise DataError(
                f"the data set {self.description.rows.dataset!r} says of no column how it becomes a feature, so rows "
                f"must be an array of the shape (rows, {shape}) given in Python, got the table {name}"
            )
        if not len(table):
            raise DataError(Fault(f"the table {name}", "hold a row", "none"))
        return encoded_rows(name, table, self.description.encoding)

    def _pictures(self, folder: Path) -> tuple[FloatArray, dict[str, Any]]:
        shape = self.description.feature_shape
        if self.description.kind != "image":
            raise DataError(Fault("the rows", "be a table, as those of the training", f"the folder {folder}"))
        features, names = pictures_alone(folder, self.description.rows, shape[0] == 1)
        return self.description.checked_features(features), {PICTURE: names}

    def _outputs(self, features: FloatArray, vector: FloatArray) -> FloatArray:
        from fedscout.engine.model.flat_model import new_model
        from fedscout.engine.training.local_training import model_outputs

        data = Samples(features, np.zeros(len(features), np.int64), np.arange(len(features)))
        classifies = self.description.scale is None
        with _one_thread():
            model = new_model(self.description.factory, seed=0)
            return np.concatenate([*model_outputs(model, data, vector, softmax=classifies)])


def load(folder: str | Path, code: str | None = None) -> TrainedModel:
    """Return the model that `fedscout train --out`, or a real federation, has left in a folder.

    Args:
        folder: The folder.
        code: `package.module:factory`, where the model is one's own code: the folder's word for it does not suffice.

    Raises:
        ConfigurationError: If the model is code that was not named.
        LogError: If the folder holds no model, or its files do not fit together.
    """
    folder = Path(folder).expanduser()
    description = read_description(folder)
    kind = description.model.kind
    if ":" in kind and kind != code:
        raise ConfigurationError(
            f"{folder} names code as its model: {shown(kind)}. To run it say so, by --code {kind}"
            if code is None
            else Fault("the code of the model", f"be {shown(kind)}", shown(code))
        )
    paths = sorted(folder.glob("model_*.safetensors"), key=_number) or [folder / "model.safetensors"]
    return TrainedModel(folder, description, np.stack([_vector(path, description) for path in paths]))


def _number(path: Path) -> tuple[int, str]:
    digits = path.stem.removeprefix("model_")
    return int(digits) if digits.isdecimal() else -1, path.name


def _vector(path: Path, description: ModelDescription) -> FloatArray:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    from fedscout.engine.model.flat_model import new_model

    try:
        if not path.is_file():
            raise LogError(Fault(path.parent, f"hold the weights {path.name}, but does not"))
        return new_model(description.factory, seed=0).layout.join(load_file(path))
    except (OSError, ValueError, SafetensorError) as error:
        raise LogError(Fault(path, f"hold the weights of the model beside it: {first_line(error)}")) from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread, as every host does: sums of several have other last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
