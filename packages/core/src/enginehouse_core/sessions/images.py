"""Images on their way into a record: checked, stored as blobs of the session, replaced by references.

Rule: nothing that is said about an image is believed. Its kind, size and digest come from its bytes, whether they were
handed in or are a blob already. Blocking: call it from a worker thread.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from enginehouse_core.transcript.blobs import load_blob, store_blob
from enginehouse_protocol.content import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES, Content, Image
from enginehouse_protocol.errors import FileUnusable, MalformedData
from enginehouse_protocol.image_headers import ImageHeader, image_header

_MAX_NAME = 200


def has_images(content: Sequence[Content]) -> bool:
    return any(isinstance(part, Image) for part in content)


def keep_images(blobs: Path, content: tuple[Content, ...]) -> tuple[Content, ...]:
    """The same content with every image by reference; their blobs are on disk when this returns.

    Raises:
        MalformedData: too many, too large, not what they claim to be, or a reference to what the session has not.
        TranscriptUnavailable: the disk refuses.
    """
    images = [part for part in content if isinstance(part, Image)]
    if len(images) > MAX_IMAGES:
        raise MalformedData(f"{len(images)} images in one message; at most {MAX_IMAGES}")
    handed_in = sum(len(image.data) for image in images if image.data is not None)
    if handed_in > MAX_IMAGES_BYTES:
        raise MalformedData(f"{handed_in} bytes of images in one message; at most {MAX_IMAGES_BYTES}")
    looked_at = [_looked_at(blobs, image) for image in images]  # all of them before any is stored
    kept = iter([_kept(blobs, *each) for each in looked_at])
    return tuple(next(kept) if isinstance(part, Image) else part for part in content)


def _looked_at(blobs: Path, image: Image) -> tuple[Image, bytes, ImageHeader]:
    name = f"image {image.name!r}" if image.name else "image"
    if image.data is not None:
        data = image.data
    else:
        try:
            data = load_blob(blobs, image.sha256)
        except FileUnusable as error:
            raise MalformedData(f"{name} is named by a digest, and this session has no such blob: {error}") from error
    if len(data) > MAX_IMAGE_BYTES:
        raise MalformedData(f"{name} has {len(data)} bytes; at most {MAX_IMAGE_BYTES}")
    header = image_header(data)
    if header is None:
        raise MalformedData(f"{name} is none: its first bytes are those of no PNG, JPEG, GIF or WebP")
    if header.media_type != image.media_type:
        raise MalformedData(f"{name} is said to be {image.media_type}, and its first bytes are {header.media_type}")
    return image, data, header


def _kept(blobs: Path, image: Image, data: bytes, header: ImageHeader) -> Image:
    return msgspec.structs.replace(
        image,
        data=None,
        sha256=image.sha256 or store_blob(blobs, data),
        size_bytes=len(data),
        width=header.width,
        height=header.height,
        name=image.name.rpartition("/")[2][:_MAX_NAME],
    )
