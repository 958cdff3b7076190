"""Keys and values of a text, written in place: appending, rolling back and keeping a path of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specdemo.models.block import Heads, Place, rotary_tables
from specdemo.models.device import to_device
from specdemo.models.tree import Tree


class Cached(Protocol):
    """What a cache is made for: a model of `depth` layers, or a head that works like one."""

    heads: Heads
    depth: int
    width: int
    rotary: tuple[Tensor, float]
    device: torch.device
    dtype: torch.dtype


class KVCache:
    """Keys and values of the tokens seen so far, `stored` [layers, 2, batch, kv_heads, capacity, head_dim].

    `lengths` is the single truth about what is valid in each row: appending writes behind it, rolling back only moves
    it. Rows may differ in length.

    taps: depths whose states are kept beside keys and values, since heads draft from them: i is the residual stream
    that enters layer i, `depth` what leaves the last layer, `depth + 1` the same after the last norm. They lie in
    `features` [batch, capacity, taps * width].
    """

    def __init__(self, model: Cached, capacity: int, batch: int = 1, taps: Sequence[int] = ()) -> None:
        device, dtype, self.heads = model.device, model.dtype, model.heads
        shape = (model.depth, 2, batch, self.heads.shared, capacity, self.heads.dim)
        self.stored = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = self.stored.unbind(0)
        cos, sin = rotary_tables(*model.rotary, capacity)
        # Signed as Block's rotation wants it: there a half turn of the dimensions stands for rotate_half.
        sin = sin * torch.tensor([-1.0, 1.0]).repeat_interleave(self.heads.dim // 2)
        self.cos, self.sin = (table.to(device, dtype) for table in (cos, sin))
        self.capacity, self.batch, self.device = capacity, batch, device
        self.width, self.taps = model.width, tuple(taps)
        self.features = torch.zeros(batch, capacity, len(self.taps) * self.width, dtype=dtype, device=device)
        self.lengths = [0] * batch

    def keep(self, length: int, slots: list[int]) -> None:
        """Keep the first `length` tokens and those in `slots` behind them, moved together. Of a cache of one row."""
        end = length + len(slots)
        if slots != list(range(length, end)):
            index = to_device(slots, self.device)
            self.stored[..., length:end, :] = self.stored.index_select(4, index)
            if self.taps:
                self.features[:, length:end] = self.features.index_select(1, index)
        self.lengths = [end]

    def clear(self) -> None:
        """Forget everything. Recorded passes read behind the text too, masked, and a NaN there would come through."""
        self.stored.zero_()
        self.lengths = [0] * self.batch

    def tap(self, depth: int, x: Tensor, slots: slice | Tensor) -> None:
        """Keep the states x [batch, k, width] of a depth where somebody wants them."""
        if depth not in self.taps:
            return
        at = self.taps.index(depth) * self.width
        part = self.features[..., at : at + self.width]
        if isinstance(slots, slice):
            part[:, slots] = x
        else:
            part.scatter_(1, slots[..., None].expand_as(x), x)

    def place(self, k: int, tree: Tree | None = None) -> Place:
        """Behind what is there, see `LeanModel.forward`."""
        if len(set(self.lengths)) == 1:
            return self.behind(k, tree)
        if tree is not None:
            raise ValueError("trees are for rows of one length")
        return self.ragged(k, to_device(self.lengths, self.device), max(self.lengths) + k)

    def behind(self, k: int, tree: Tree | None = None) -> Place:
        """Behind rows of one length: everything is a slice, nothing is gathered.

        The k tokens are the last nodes of the tree; nodes before them are the last tokens of the cache.
        """
        start = self.lengths[0]
        new = slice(start, start + k)
        if tree is not None:
            text = new.stop - len(tree)
            positions = text + tree.depths(self.device)[-k:]
            mask = F.pad(tree.mask(self.device)[-k:], (text, 0), value=True)
            return Place(new, new.stop, self.cos[positions], self.sin[positions], mask.repeat(self.heads.groups, 1))
        mask = None  # a single query sees everything
        if k > 1:
            mask = torch.ones(k, new.stop, dtype=torch.bool, device=self.device).tril(start)
            mask = mask.repeat(self.heads.groups, 1)
        return Place(new, new.stop, self.cos[new], self.sin[new], mask)

    def branching(self, seen: Tensor, depths: Tensor, start: Tensor, end: int) -> Place:
        """Behind a text of `start` [1] tokens, as the last k nodes of a tree of m, those before being in the cache.
        seen [k, m] bool: which nodes each sees, itself included; depths [k]. Everything stays on the device; attention
        reads `end` slots. Of a cache of one row."""
        k, m = seen.shape
        node = torch.arange(end, device=self.device) - start  # that lies in each slot
        mask = (node < 0) | ((node < m) & seen[:, node.clamp(0, m - 1)])
        positions = start + depths
        slots = start[:, None] + torch.arange(m - k, m, device=self.device)
        return Place(slots, end, self.cos[positions], self.sin[positions], mask.repeat(self.heads.groups, 1))

    def ragged(self, k: int, starts: Tensor, end: int) -> Place:
        """Behind `starts` [batch], which may differ and stay on the device; attention reads `end` slots of each row."""
        slots = starts[:, None] + torch.arange(k, device=self.device)
        mask = torch.arange(end, device=self.device) <= slots[..., None]
        cos, sin = self.cos[slots][:, None], self.sin[slots][:, None]
        return Place(slots, end, cos, sin, mask.repeat(1, self.heads.groups, 1)[:, None])
