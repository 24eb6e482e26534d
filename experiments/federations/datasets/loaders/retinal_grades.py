"""Retinal images by hospital, another task: grades of diabetic retinopathy, each collection a natural client.

Several hospitals have published photographs of the eye's ground with the grade of diabetic retinopathy, 0 to 4, on the
international scale (C. P. Wilkinson et al., "Proposed international clinical diabetic retinopathy and diabetic macular
edema disease severity scales", Ophthalmology 110(9), 2003), each as files of its own. Put side by side they are a
federation whose clients differ in camera, patients and grader. Nobody publishes that federation as one file, so the
folder is the user's to make: `retinal_grades/<hospital>/`, with class folders or a `labels.csv` in each.
"""

from __future__ import annotations

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.images.image_folder import pictures_dataset
from fedscout.experiments.federations.datasets.images.image_listing import list_pictures
from fedscout.experiments.federations.datasets.publication import FOLDER_VARIABLE, Publication, data_root

RETINAL_GRADES = Publication(
    "APTOS 2019 Blindness Detection, Aravind Eye Hospital, 2019; IDRiD, Porwal et al., Data 3(3), 2018; Messidor-2, "
    "Decencière et al., Image Analysis & Stereology 33(3), 2014, and others",
    "https://www.kaggle.com/c/aptos2019-blindness-detection, https://ieee-dataport.org/open-access/"
    "indian-diabetic-retinopathy-image-dataset-idrid, https://www.adcis.net/en/third-party/messidor2/",
    derivation="put each hospital's images into a folder of their own, by class or with a labels.csv (image,label)",
)
FOLDER = "retinal_grades"


def load_retinal_grades(request: DatasetRequest) -> Dataset:
    """Load the hospitals' images; the natural clients are the hospitals."""
    wanted = (
        f"${FOLDER_VARIABLE}/{FOLDER}/<hospital>/<class>/<image> or ${FOLDER_VARIABLE}/{FOLDER}/<hospital>/labels.csv"
    )
    folder = data_root("retinal_grades", request.folder, wanted, RETINAL_GRADES) / FOLDER
    if not folder.is_dir():
        raise DataError(
            f"data set 'retinal_grades' needs the folder {folder}, which is missing: put {wanted} in place; "
            f"{RETINAL_GRADES.citation} are published at {RETINAL_GRADES.address}; {RETINAL_GRADES.derivation}"
        )
    pictures = list_pictures(folder, request.label, request.client_column, request.limits)
    if pictures[0].client is None:
        raise DataError(
            Fault(
                "data set 'retinal_grades'",
                (
                    f"have one folder per hospital, {wanted}, but {folder} holds class folders or a "
                    "labels.csv without federation.client_column"
                ),
            )
        )
    return pictures_dataset("retinal_grades", pictures, str(RETINAL_GRADES), request)
