"""Tensors on the pretended device, and what happens to every operation on them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from tests.fakecuda import indexing
from tests.fakecuda.machine import FakeCudaError, machine
from tests.fakecuda.memory import spoil, storage_of
from tests.fakecuda.trees import mapped, tensors_in

aten = torch.ops.aten

Operator = Any
"""An ATen overload, or a `kernels.Kernel`: callable, with a `_schema`."""

_MAY_INDEX = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_", "aten::_unsafe_index"}
_WAITS = {
    "aten::nonzero": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::equal": "equal",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique",
    "aten::bincount": "bincount",
    "aten::_local_scalar_dense": "D2H item",
}
_EMPTY = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
_NO_SCALARS = {
    "aten::embedding",
    "aten::index_select",
    "aten::gather",
    "aten::cat",
}  # of the CPU's


class CudaTensor(torch.Tensor):
    """A tensor that says it is on a GPU. `inner`: the CPU's, in which its numbers really lie."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: int) -> CudaTensor:
        memory = machine.allocation(inner, device, machine.capture_on(device))
        # Always a normal tensor: a view of one that is not, made in inference mode, must not be an inference tensor.
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                inner.size(),
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                layout=inner.layout,
                device=torch.device("cuda", device),
                requires_grad=False,
            )
        made.inner, made._memory = inner, memory
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Operator, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        return dispatch(func, args, kwargs or {})

    # What torch.Tensor does below Python's sight for these asks the C++ side for a real device.

    def __getitem__(self, key: Any) -> torch.Tensor:
        return indexing.read(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        indexing.write(self, key, value)

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        return dispatch(aten.copy_.default, (self, source, non_blocking), {})

    def item(self) -> Any:
        return dispatch(aten._local_scalar_dense.default, (self,), {})

    def nonzero(self) -> torch.Tensor:
        return dispatch(aten.nonzero.default, (self,), {})

    def tolist(self) -> list:
        machine.wait("D2H tolist")
        return self.inner.tolist()

    def __invert__(self) -> torch.Tensor:
        return aten.bitwise_not.default(self)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(aten.unbind.int(self, 0))

    def __len__(self) -> int:
        return self.shape[0]

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    __index__ = __int__

    def __bool__(self) -> bool:
        return bool(self.item())

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"CudaTensor({self.inner!r}, device='{self.device}')"


def place_of(tensor: torch.Tensor) -> int | None:
    """The index of a tensor's device, None for the CPU."""
    return tensor.device.index if isinstance(tensor, CudaTensor) else None


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The CPU's tensor in which a tensor's numbers lie."""
    return tensor.inner if isinstance(tensor, CudaTensor) else tensor


def _as_recorded(tensor: torch.Tensor) -> torch.Tensor:
    """A number that lies on the CPU is recorded by its value, what lies on the device by its place."""
    return tensor.inner if isinstance(tensor, CudaTensor) else tensor.clone()


def common_device(name: str, operands: list[torch.Tensor]) -> int:
    """The device that an operator runs on. Raises where its operands lie on several, as CUDA's operators do."""
    index = next(place_of(t) for t in operands if isinstance(t, CudaTensor))
    for t in operands:
        there = place_of(t)
        if there is None and name in _MAY_INDEX and not t.is_floating_point():
            machine.wait("H2D copy, pageable")  # an index from the CPU is brought over
        elif there != index and (there is not None or t.dim() or name in _NO_SCALARS):
            where = "cpu" if there is None else f"cuda:{there}"
            raise FakeCudaError(
                f"Expected all tensors to be on the same device, but found at least two devices, cuda:{index} and "
                f"{where}, in {name} ({where}: {tuple(t.shape)}) at {machine.line()}"
            )
    return index


def dispatch(func: Operator, args: tuple, kwargs: dict[str, Any]) -> Any:
    """One operation that has a tensor of the device among its operands."""
    name = func._schema.name
    if name == "aten::copy_":
        return copy_into(*args, **kwargs)
    if name == "aten::_to_copy":
        return copy_to(*args, **kwargs)
    operands = tensors_in((args, kwargs))
    index: int | None = common_device(name, operands)
    if name in _WAITS:
        machine.wait(_WAITS[name])
    elif name in _MAY_INDEX and any(isinstance(t, torch.Tensor) and t.dtype == torch.bool for t in args[1]):
        machine.wait("index by a mask")
    elif name == "aten::repeat_interleave" and kwargs.get("output_size") is None:
        machine.wait("repeat_interleave")
    if kwargs.get("device") is not None:
        index = index_of(kwargs["device"])
        kwargs = kwargs | {"device": torch.device("cpu")}
    kwargs.pop("pin_memory", None)
    return execute(func, args, kwargs, index)


def index_of(device: Any) -> int | None:
    """The index of a device as torch takes it, None for the CPU; "cuda" is the calling thread's, a number CUDA's."""
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "cuda":
        return None
    return machine.chosen.device if device.index is None else device.index


def execute(func: Operator, args: tuple, kwargs: dict[str, Any], index: int | None) -> Any:
    """Compute on the CPU, record what a capture wants, count, and wrap what comes out for device `index`."""
    capture = None if index is None else machine.capture_on(index)
    inner_args, inner_kwargs = mapped(plain if capture is None else _as_recorded, (args, kwargs))
    written = _written(func, args, kwargs)
    if capture is not None and not all(capture.made_here(plain(t)) for t in written):
        out = plain(written[-1])  # a capture computes nothing, so what was there before it stays as it is
    else:
        out = func(*inner_args, **inner_kwargs)
    name = func._schema.name
    results = tensors_in(out)
    known = {storage_of(t) for t in tensors_in((inner_args, inner_kwargs))}
    is_view = not written and all(storage_of(t) in known for t in results)
    if index is not None and not is_view:
        _launch(name, (func, inner_args, inner_kwargs, out, bool(written)), index)
    if written:
        returned = written[: len(func._schema.returns)]
        if any(t.shape != plain(t).shape for t in returned):
            raise FakeCudaError(f"{name} changed the shape of what it was given, which this device does not follow")
        return returned[0] if len(returned) == 1 else tuple(returned) or None
    return out if index is None else mapped(lambda t: CudaTensor(t, index), out)


def _launch(name: str, step: tuple, index: int) -> None:
    """Count a kernel, or record it. `empty` is none, but what it gives is undefined whenever it is run."""
    out = step[3]
    if name in _EMPTY:
        spoil(out)
        step = (spoil, (out,), {}, out, True)
    capture = machine.capture_on(index)
    machine.forbid_beside_capture(index)
    if capture is not None:
        capture.add(name, step, name not in _EMPTY)
    elif name not in _EMPTY:
        machine.counts.launches += 1
        machine.counts.operators[name] += 1


def _written(func: Operator, args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The operands that an operator writes to."""
    found: list[torch.Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name) if argument.kwarg_only or i >= len(args) else args[i]
            found += tensors_in(value)
    return found


# --- Copies between devices ---

_pinned: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()  # by storage


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Call the CPU's tensor one in pinned memory, from which copies need not wait."""
    _pinned[storage_of(tensor)] = tensor
    return tensor


def copy_into(into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`into.copy_(source)`, whatever lies where."""
    here, there = place_of(source), place_of(into)
    if there is not None:
        if here is None:
            _bring(source, there, non_blocking)
        return execute(aten.copy_.default, (into, source), {}, there)
    _fetch(into, source.inner, here, non_blocking and storage_of(into) in _pinned)
    return into


def copy_to(
    source: torch.Tensor, *, device: Any = None, non_blocking: bool = False, pin_memory: object = None, **options: Any
) -> torch.Tensor:
    """`source.to(device, ...)` where that is a new tensor."""
    here, there = place_of(source), index_of(source.device if device is None else device)
    if here is None and there is not None:
        _bring(source, there, non_blocking)
    made = execute(aten._to_copy.default, (source,), options, there)
    if here is not None and there is None:
        _fetch(made, made.clone(), here, non_blocking)
    return pin(made) if there is None and non_blocking else made


def _bring(source: torch.Tensor, there: int, non_blocking: bool) -> None:
    """Host to device. Inside a capture it would record an address of the host's memory, so that is refused."""
    if not (non_blocking and storage_of(source) in _pinned):
        machine.wait("H2D copy, pageable")
    elif (capture := machine.capture_on(there)) is not None:
        capture.broken = True
        raise FakeCudaError(f"a copy from host memory inside a capture at {machine.line()}")


def _fetch(into: torch.Tensor, value: torch.Tensor, here: int, is_async: bool) -> None:
    """Device to host. What is copied asynchronously is not there before the host has waited for something."""
    if not is_async:
        machine.wait("D2H copy")
        into.copy_(value)
        return
    if (capture := machine.capture_on(here)) is not None:
        capture.broken = True
        raise FakeCudaError(f"a copy to host memory inside a capture at {machine.line()}")
    sent = value.clone()
    machine.arrives_later(torch.inference_mode()(lambda: into.copy_(sent)))
    spoil(into)
