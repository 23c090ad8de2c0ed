"""The B+-tree of byte keys that a bundle keeps its records, dictionaries and stages in.

Every node is a blob. The values of a leaf (level 0) are the tree's; those of an inner node are
packed Refs of its children, and its keys are their first keys.
"""

from __future__ import annotations

from runtime_loader.blobs import Blobs, Content
from runtime_loader.errors import BundleError
from runtime_loader.format import (
    MAX_LEVELS,
    MAX_NODE,
    NO_DICTIONARY,
    NODE,
    NODE_ENTRY,
    NODE_MAGIC,
    REF,
    Ref,
)
from runtime_loader.recent import recent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NODES_KEPT = 16

# What one walk may decode: this much, and this many times the size of the file. Far above what
# real bundles need, it bounds the time that a forged one can take.
WALK_BYTES = 1 << 30
WALK_FACTOR = 256


class Node:
    """One decoded node; entries are checked when they are touched."""

    def __init__(self, content: Content, what: str) -> None:
        self._content = content
        self._what = what
        self.level, self.entries = 0, 0
        if len(content) < NODE.size:
            raise BundleError(f"{what} is damaged: {len(content)} bytes are no node")
        magic, self.level, self.entries, zero = NODE.unpack_from(content)
        heap = NODE.size + self.entries * NODE_ENTRY.size
        if magic != NODE_MAGIC or zero or heap > len(content) or self.level >= MAX_LEVELS:
            raise BundleError(f"{what} is damaged: its header is not that of a node")
        self.heap = heap

    def extents(self, index: int) -> tuple[int, int, int, int]:
        """Key start, key end, value start, value end of an entry, inside the node."""
        key, key_size, value, value_size = NODE_ENTRY.unpack_from(
            self._content, NODE.size + index * NODE_ENTRY.size
        )
        if (
            min(key, value) < self.heap
            or max(key + key_size, value + value_size) > len(self._content)
            or (self.level and value_size != REF.size)
        ):
            raise BundleError(f"{self._what} is damaged: entry {index} lies outside of it")
        return key, key + key_size, value, value + value_size

    def key(self, index: int) -> bytes:
        start, end, _, _ = self.extents(index)
        return bytes(self._content[start:end])

    def value(self, index: int) -> bytes:
        _, _, start, end = self.extents(index)
        return bytes(self._content[start:end])

    def position(self, key: bytes) -> int:
        """How many keys of the node are less than `key`."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            if self.key(middle) < key:
                low = middle + 1
            else:
                high = middle
        return low

    def branch(self, key: bytes) -> int:
        """In an inner node: the entry that leads to `key`, or -1 when `key` is below them all."""
        index = self.position(key)
        return index if index < self.entries and self.key(index) == key else index - 1


class Tree:
    """A tree below `root`: lookups touch O(log n) nodes, walks decode nodes as they go."""

    def __init__(self, blobs: Blobs, root: Ref, what: str, file_size: int) -> None:
        self._blobs = blobs
        self._root = root
        self._what = f"{blobs.where}: {what}"
        self._file_size = file_size
        self._node, self.forget = recent(self._read, _NODES_KEPT)

    def find(self, key: bytes) -> bytes | None:
        """The value of `key`, or None."""
        node = self._node(self._root)
        while node.level:
            index = node.branch(key)
            if index < 0:
                return None
            node = self._child(node, index)
        index = node.position(key)
        if index == node.entries or node.key(index) != key:
            return None
        return node.value(index)

    def first(self, at_least: bytes) -> bytes | None:
        """The first key that is not below `at_least`, or None."""
        return next((key for key, _ in self.items(at_least)), None)

    def last_before(self, end: bytes) -> bytes | None:
        """The last key that is below `end`, or None."""
        node = self._node(self._root)
        index = node.position(end) - 1
        while node.level and index >= 0:
            node = self._child(node, index)
            index = node.position(end) - 1
        return node.key(index) if index >= 0 else None

    def items(
        self, first: bytes = b"", visit: Callable[[Ref], None] = lambda ref: None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from the first key >= `first` on, in order.

        `visit` is given every node that the walk enters. Raises `BundleError` when keys do not
        ascend; because they do, no node is entered twice, whatever a forged file says.
        """
        left = WALK_BYTES + WALK_FACTOR * self._file_size

        def enter(ref: Ref) -> None:
            nonlocal left
            left -= ref.size
            if left < 0:
                raise BundleError(f"{self._what} is damaged: it unpacks to far too much")
            visit(ref)

        enter(self._root)
        return self._walk(self._node(self._root), first, None, enter)

    def _walk(
        self,
        node: Node,
        first: bytes,
        end: bytes | None,
        enter: Callable[[Ref], None],
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries below `node` with keys >= `first`, all of which must be < `end`."""
        index = max(node.branch(first), 0) if node.level else node.position(first)
        if index == node.entries:
            return
        key = node.key(index)
        for position in range(index, node.entries):
            following = node.key(position + 1) if position + 1 < node.entries else end
            if following is not None and key >= following:
                raise BundleError(f"{self._what} is damaged: its keys are not in order")
            if node.level:
                enter(Ref.unpack(node.value(position)))
                yield from self._walk(self._child(node, position), first, following, enter)
            else:
                yield key, node.value(position)
            key = following or b""

    def _child(self, node: Node, index: int) -> Node:
        child = self._node(Ref.unpack(node.value(index)))
        if child.level != node.level - 1 or not child.entries or child.key(0) != node.key(index):
            raise BundleError(f"{self._what} is damaged: a node is not where it belongs")
        return child

    def _read(self, ref: Ref) -> Node:
        if ref.dictionary != NO_DICTIONARY:
            raise BundleError(f"{self._what} is damaged: a node needs a dictionary")
        content = self._blobs.read(ref, MAX_NODE, "a node of its index", True)
        node = Node(content, self._what)
        if node.level and not node.entries:
            raise BundleError(f"{self._what} is damaged: an inner node is empty")
        return node
