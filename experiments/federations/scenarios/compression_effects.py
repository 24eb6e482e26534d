"""A client's pictures went through JPEG: they lose what the eye hardly sees, which is a skew of features all the same.

ITU-T Recommendation T.81 | ISO/IEC 10918-1, "Digital compression and coding of continuous-tone still images", 1992: the
cosine transform of each block of 8 × 8 pixels is divided by a table and rounded. `quality` scales the example tables of
its Annex K as the Independent JPEG Group's library does, by 50 / quality below 50 and by 2 - quality / 50 from there
on: at 100 nothing but rounding is lost, at 1 of most blocks the mean alone is left. Written and read by Pillow; colour
is stored at half the resolution, as is usual (4:2:0).

Pixels are rounded to 8 bits and cut to `[0, 1]` beforehand, which alters what another effect has moved outside of it.
No random numbers are drawn.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.experiments.federations.datasets.images.pixels import LARGEST_PIXEL, PixelArray, unit_pixels
from fedscout.experiments.federations.scenarios.effect import EffectRequest, ScenarioEffect, ScenarioPlan, with_rows

GREY, COLOUR = 1, 3
SUBSAMPLING = "4:2:0"


@dataclass(frozen=True)
class JpegCompression:
    """Writes every picture as JPEG and reads it again.

    Attributes:
        quality: 1 to 100, less loses more.
    """

    quality: int

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return pictures of the same shape `(num_rows, channels, height, width)` in `[0, 1]`, and the same labels."""
        pixels = np.rint(np.clip(features, 0, 1) * LARGEST_PIXEL).astype(np.uint8)
        for row, picture in enumerate(pixels):
            pixels[row] = _compressed(picture, self.quality)
        return unit_pixels(pixels), labels.copy()


def _compressed(picture: PixelArray, quality: int) -> PixelArray:
    from PIL import Image

    grey = len(picture) == GREY
    file = io.BytesIO()
    shown = Image.fromarray(picture[0] if grey else np.ascontiguousarray(np.moveaxis(picture, 0, -1)))
    shown.save(file, "JPEG", quality=quality, **({} if grey else {"subsampling": SUBSAMPLING}))
    with Image.open(file) as read:
        pixels: PixelArray = np.asarray(read, dtype=np.uint8)
    return pixels[None] if grey else np.moveaxis(pixels, -1, 0)


class JpegEffect(ScenarioEffect):
    """Pictures that were compressed by JPEG, as by another camera or archive."""

    kind: Literal["jpeg"] = "jpeg"
    quality: int = Field(ge=1, le=100, description="of the files, less loses more; 75 is usual, 100 loses little")

    def faults(self, request: EffectRequest) -> list[str]:
        """Return what does not fit the federation; each fault begins with the key."""
        found = super().faults(request)
        channels = request.feature_shape[0]
        if request.data_kind != "image":
            found.append(f"kind must be jpeg for pictures alone, got rows that are {request.data_kind}")
        elif channels not in {GREY, COLOUR}:
            found.append(f"kind must be jpeg for grey pictures and those of three colours, got {channels} channels")
        return found

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return the compression, the same for all clients."""
        return ScenarioPlan(
            transforms=dict.fromkeys(clients, (JpegCompression(self.quality),)),
            affected_clients=with_rows(clients, request),
            facts={"quality": self.quality},
        )
