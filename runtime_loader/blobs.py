"""Blobs: the checked way from a `Ref` to the bytes it promises."""

from __future__ import annotations

from runtime_loader.digest import sha256
from runtime_loader.errors import BundleError
from runtime_loader.format import (
    ALIGNMENT,
    MAX_DICTIONARY,
    NO_DICTIONARY,
    RAW,
    REF,
    SLICE,
    ZSTD,
    Ref,
)
from runtime_loader.recent import recent
from runtime_loader.zstd import zstandard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

Content: TypeAlias = bytes | memoryview

_DICTIONARIES_KEPT = 4


class Blobs:
    """Reads blobs out of a mapped file.

    `start` is the first byte after the section table. `find_dictionary` gives the Ref of the
    dictionary with a number, `size_now` the size that the file has by now.
    """

    def __init__(
        self,
        data: memoryview,
        start: int,
        where: str,
        find_dictionary: Callable[[int], Ref],
        size_now: Callable[[], int],
    ) -> None:
        self._open = True
        self._data = data
        self._start = start
        self.where = where
        self._find_dictionary = find_dictionary
        self._size_now = size_now
        self._dictionary_content, self._forget_contents = recent(
            self._read_dictionary_content, _DICTIONARIES_KEPT
        )
        self._dictionary, self._forget = recent(self._read_dictionary, _DICTIONARIES_KEPT)

    def read(self, ref: Ref, limit: int, what: str, copied: bool = False) -> Content:
        """The content of a blob of at most `limit` bytes, decoded and checked against its SHA-256.

        A view of the mapped file when the blob is stored raw, unless `copied`: then nothing that
        is done to the file can change what was checked. Raises `BundleError`.
        """
        if ref.size > limit:
            raise self.damaged(what, f"{ref.size} bytes where at most {limit} are allowed")
        content: Content
        if ref.codec == RAW:
            content = self._raw(ref, what)
        elif ref.codec == ZSTD:
            content = self._decode(ref, what)
        elif ref.codec == SLICE:
            content = self._slice(ref, what)
        else:
            raise self.damaged(what, f"codec {ref.codec}, which this version does not know")
        if copied:
            content = bytes(content)
        if sha256(content) != ref.sha256:
            raise self.damaged(what, "its SHA-256 is not the one that the bundle names")
        return content

    def parse_ref(self, value: bytes, what: str) -> Ref:
        """The Ref that a leaf of the dictionaries or stages holds as its value."""
        if len(value) != REF.size:
            raise self.damaged(what, "it is no blob reference")
        return Ref.unpack(value)

    def damaged(self, what: str, why: str) -> BundleError:
        return BundleError(
            f"{self.where}: {what} is damaged: {why}. Copy the bundle again or rebuild it."
        )

    def close(self) -> None:
        """Let go of the file; views that were given out stay valid."""
        self._open = False
        self._forget()
        self._forget_contents()
        self._data.release()

    def _stored(self, ref: Ref, what: str) -> memoryview:
        if not self._open:
            raise BundleError(f"{self.where} was used after it was closed")
        end = ref.offset + ref.stored_size
        if ref.offset % ALIGNMENT or ref.offset < self._start or end > len(self._data):
            raise self.damaged(
                what, f"bytes {ref.offset} to {end} of a file of {len(self._data)} bytes"
            )
        size = self._size_now()
        if size < len(self._data):  # to touch what is gone would end the process with SIGBUS
            raise BundleError(
                f"{self.where} was cut short while it was open, from {len(self._data)} to {size} "
                "bytes. Replace bundles by renaming, never in place; copy it again or rebuild it."
            )
        return self._data[ref.offset : end]

    def _raw(self, ref: Ref, what: str) -> memoryview:
        if ref.stored_size != ref.size or ref.dictionary != NO_DICTIONARY:
            raise self.damaged(what, "a raw blob with two sizes or a dictionary")
        return self._stored(ref, what)

    def _slice(self, ref: Ref, what: str) -> Content:
        if ref.dictionary == NO_DICTIONARY:
            raise self.damaged(what, "a slice of no dictionary")
        whole = self._dictionary_content(ref.dictionary)
        end = ref.offset + ref.stored_size
        if ref.stored_size != ref.size or end > len(whole):
            raise self.damaged(what, f"bytes {ref.offset} to {end} of dictionary {ref.dictionary}")
        return whole[ref.offset : end]

    def _decode(self, ref: Ref, what: str) -> bytes:
        stored = self._stored(ref, what)
        dictionary = None
        if ref.dictionary != NO_DICTIONARY:
            dictionary = self._dictionary(ref.dictionary)
        if ref.stored_size >= ref.size:
            raise self.damaged(what, "a compressed blob that is not smaller than its content")
        try:
            # One pass over a whole frame whose window is no larger than its content needs no
            # memory beyond the content.
            frame = zstandard.get_frame_parameters(stored)
            if frame.content_size != ref.size or frame.window_size > ref.size:
                raise self.damaged(what, "the sizes in its zstd frame are not those of the bundle")
            return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(
                stored, max_output_size=ref.size, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise self.damaged(what, str(error)) from None

    def _read_dictionary_content(self, number: int) -> Content:
        what = f"dictionary {number}"
        ref = self._find_dictionary(number)
        if ref.dictionary != NO_DICTIONARY:
            raise self.damaged(what, "it needs another dictionary")
        return self.read(ref, MAX_DICTIONARY, what)

    def _read_dictionary(self, number: int) -> zstandard.ZstdCompressionDict:
        return zstandard.ZstdCompressionDict(
            bytes(self._dictionary_content(number)), dict_type=zstandard.DICT_TYPE_RAWCONTENT
        )
