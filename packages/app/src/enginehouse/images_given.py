"""The images a person names with `--image`, read where the person sits.

Rule: what the hub would refuse is refused here, with the file's name, before anything is started or sent.
"""

import os
from collections.abc import Sequence

from enginehouse_protocol.codec import well_formed
from enginehouse_protocol.content import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES, Image
from enginehouse_protocol.errors import UsageError
from enginehouse_protocol.image_headers import image_header


def images_given(paths: Sequence[str] | None) -> tuple[Image, ...]:
    """Raises: UsageError."""
    paths = paths or ()
    if len(paths) > MAX_IMAGES:
        raise UsageError(f"{len(paths)} images are too many for one message; at most {MAX_IMAGES}")
    images = tuple(_image(path) for path in paths)
    together = sum(len(image.data or b"") for image in images)
    if together > MAX_IMAGES_BYTES:
        raise UsageError(f"the images have {together} bytes together; at most {MAX_IMAGES_BYTES} in one message")
    return images


def _image(path: str) -> Image:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the image {path!r} cannot be read: {error.strerror}") from error
    header = image_header(data)
    if header is None:
        raise UsageError(f"{path!r} is no image: its first bytes are those of no PNG, JPEG, GIF or WebP")
    if len(data) > MAX_IMAGE_BYTES:
        raise UsageError(f"the image {path!r} has more than {MAX_IMAGE_BYTES} bytes; send a smaller copy")
    return Image(media_type=header.media_type, data=data, name=well_formed(os.path.basename(path)))
