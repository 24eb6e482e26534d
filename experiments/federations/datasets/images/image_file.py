"""One picture file: is it grey or coloured, and its pixels at a wanted size. Read by Pillow.

A picture is turned as its EXIF orientation says, laid over black where it is transparent, and resized to a square
without regard to its proportions: each new pixel is the mean of the area that it covers (Pillow's box filter), so that
shrinking loses nothing and enlarging repeats pixels.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.images.pixels import PixelArray

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16L", "I;16B")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
LARGEST_16_BIT = 65_535


def is_grey(path: Path) -> bool:
    """Whether a picture's format stores one brightness a pixel; colours that happen to be grey do not count.

    Args:
        path: An existing file, of which the head alone is read.

    Raises:
        DataError: If it is no picture, or one that can't be used.
    """
    with _opened(path) as picture:
        return picture.mode in GREY_MODES


def read_pixels(path: Path, size: int, grey: bool) -> PixelArray:
    """Return a picture's pixels, shape `(channels, size, size)`, with one channel if grey and three if not.

    Args:
        path: An existing file.
        size: Width and height wanted.
        grey: Whether to return brightness alone; only for a picture that is grey.

    Raises:
        DataError: If it is no picture, is damaged, or can't be used.
    """
    from PIL import Image

    with _opened(path) as picture:
        small = plain_picture(path, picture).convert("L" if grey else "RGB").resize((size, size), Image.Resampling.BOX)
        pixels: PixelArray = np.asarray(small, dtype=np.uint8).reshape(size, size, -1)
    return np.moveaxis(pixels, -1, 0)


def plain_picture(source: Path | str, picture: Image.Image) -> Image.Image:
    """Return an opened picture upright and over black, in Pillow's mode L if it is stored in grey, else in RGB.

    Args:
        source: Where it is from, for messages.
        picture: Of any mode.

    Raises:
        DataError: If it can't be used.
    """
    from PIL import ImageOps

    _require_usable(source, picture)
    mode = "L" if picture.mode in GREY_MODES else "RGB"
    return _on_black(_eight_bits(ImageOps.exif_transpose(picture))).convert(mode)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open a picture; whatever goes wrong with it, there or later, is told as a fault of this file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # A picture so large that it may be meant to exhaust the memory is but warned of.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)  # of odd metadata, which do not matter here
            with Image.open(path, formats=FORMATS) as picture:
                _require_usable(path, picture)
                yield picture
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(
            Fault(
                path,
                (
                    f"hold at most {Image.MAX_IMAGE_PIXELS} pixels, but its head announces more: a "
                    "decompression bomb, or a picture to be made smaller first"
                ),
            )
        ) from None
    except UnidentifiedImageError:
        raise DataError(Fault(path, f"be a picture ({', '.join(FORMATS)}), but its content is none")) from None
    except MemoryError:
        raise DataError(f"{path} can't be read: it does not fit into memory") from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise DataError(f"{path} is damaged or can't be read: {reason}") from None


def _require_usable(path: Path | str, picture: Image.Image) -> None:
    if picture.mode not in (*GREY_MODES, *COLOUR_MODES):
        raise DataError(
            Fault(
                path,
                "hold pixels of 8 bits a channel, or grey ones of 16, as others have no known scale",
                f"Pillow's mode {picture.mode!r}",
            )
        )
    num_frames = getattr(picture, "n_frames", 1)
    if num_frames != 1:
        raise DataError(Fault(path, "hold one picture", num_frames))


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Return 16-bit grey in 8 bits; Pillow's own conversion would cut off all above 255."""
    from PIL import Image

    if not picture.mode.startswith("I;16"):
        return picture
    values = np.asarray(picture).astype(np.float64) * (255 / LARGEST_16_BIT)
    return Image.fromarray(np.rint(values).astype(np.uint8))


def _on_black(picture: Image.Image) -> Image.Image:
    from PIL import Image

    if not picture.has_transparency_data:
        return picture
    grey = picture.mode in GREY_MODES
    opaque = picture.convert("RGBA")
    black = Image.new("RGBA", opaque.size, (0, 0, 0, 255))
    return Image.alpha_composite(black, opaque).convert("L" if grey else "RGB")
