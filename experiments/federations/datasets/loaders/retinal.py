"""Retinal images by hospital: glaucoma or healthy, each collection a natural client.

Photographs of the eye's ground from several hospitals, of which each has its own camera, patients and graders. Nobody
publishes that federation as one file, so the folder is the user's to make: `retinal/<collection>/`, with any
collections in the layouts in which they are published (`images/glaucoma_collections.py` says which, with their
sources). SMDG-19 alone is nineteen of them.

A natural client is a collection, as that is what tells the hospital; parts of a collection that were published to train
and to test on are one client. Only RIM-ONE DL's two parts differ by hospital and are two clients. Pictures of eyes that
are but suspected of glaucoma are left out, and counted in the record.
"""

from __future__ import annotations

from dataclasses import replace

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.column_choice import choose_label
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.images.glaucoma_collections import (
    GLAUCOMA,
    HEALTHY,
    SUSPECT,
    collection_pictures,
)
from fedscout.experiments.federations.datasets.images.image_folder import pictures_dataset
from fedscout.experiments.federations.datasets.publication import FOLDER_VARIABLE, Publication, data_root

RETINAL = Publication(
    "SMDG-19, Kiefer et al., 2023; ORIGA-light, Zhang et al., EMBC 2010; G1020, Bajwa et al., IJCNN 2020; REFUGE, "
    "Orlando et al., Medical Image Analysis 59, 2020; RIM-ONE DL, Fumero Batista et al., Image Analysis & Stereology "
    "39(3), 2020",
    "https://www.kaggle.com/datasets/deathtrooper/multichannel-glaucoma-benchmark-dataset, "
    "https://www.kaggle.com/datasets/arnavjain1/glaucoma-datasets, https://refuge.grand-challenge.org, "
    "https://github.com/miag-ull/rim-one-dl",
    derivation="unpack each collection into a folder of its own, or put class folders healthy and glaucoma there",
)
FOLDER = "retinal"
LABEL = "diagnosis"
HOSPITAL = "hospital"


def load_retinal(request: DatasetRequest) -> Dataset:
    """Load the collections; the label is `diagnosis`, the natural client the `hospital`."""
    choose_label(request, (LABEL,), client=HOSPITAL)
    wanted = f"${FOLDER_VARIABLE}/{FOLDER}/<collection>/…"
    folder = data_root(FOLDER, request.folder, wanted, RETINAL) / FOLDER
    collections = sorted(path for path in folder.glob("[!.]*") if path.is_dir())
    if not collections:
        raise DataError(f"data set 'retinal' needs {wanted}, but {folder} holds no folder: {RETINAL.origin}")
    pictures = [picture for path in collections for picture in collection_pictures(path, request.limits)]
    known = [picture for picture in pictures if picture.label != SUSPECT]
    if not known:
        raise DataError(
            Fault("data set 'retinal'", f"hold eyes with {GLAUCOMA} and healthy ones, but all are suspected")
        )
    asked = request.model_copy(update={"label": LABEL})
    dataset = pictures_dataset(FOLDER, known, str(RETINAL), asked, classes=(HEALTHY, GLAUCOMA))
    return replace(dataset, facts={**dataset.facts, "num_suspects_left_out": len(pictures) - len(known)})
