"""Putting the pretended device below torch.cuda."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch

from tests.fakecuda import kernels
from tests.fakecuda.graphs import Event, Graph, Stream
from tests.fakecuda.machine import machine
from tests.fakecuda.tensors import CudaTensor, copy_to, index_of, pin

_kept: list[object] = []  # what must live as long as the process


def installed() -> bool:
    return bool(_kept)


def install() -> None:
    """Make this process see CUDA devices. Import classes of transformers before: its modules ask when imported."""
    if installed():
        return
    import torch._dynamo  # it imports more of torch._C where it sees CUDA, so it must not see any

    for name, pretended in _bindings().items():
        setattr(torch._C, name, pretended)
    _patch_cuda()
    _patch_tensors()
    kernels.fuse()
    _kept.append(kernels.register_factories())


def _bindings() -> dict[str, Any]:
    """What torch.cuda's Python calls in torch._C."""
    chosen = machine.chosen
    return {
        "_cuda_init": lambda: None,
        "_cuda_isInBadFork": False,
        "_cuda_getDeviceCount": lambda: len(machine.devices),
        "_cuda_getDevice": lambda: chosen.device,
        "_cuda_setDevice": lambda device: setattr(chosen, "device", device),
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _exchange_device,
        "_cuda_synchronize": lambda: machine.wait("torch.cuda.synchronize"),
        "_cuda_getCurrentStream": lambda device: (machine.stream(device), device, 1),
        "_cuda_getDefaultStream": lambda device: (0, device, 1),
        "_cuda_setStream": _set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: machine.capture_on(chosen.device) is not None,
        "_cuda_emptyCache": lambda: [memory.release_unused() for memory in machine.devices],
        "_host_emptyCache": lambda: None,
        "_cuda_memoryStats": _memory_stats,
        "_cuda_resetPeakMemoryStats": lambda device: setattr(
            machine.devices[device], "peak", machine.devices[device].allocated
        ),
        "_cuda_set_sync_debug_mode": lambda mode: setattr(machine, "sync_debug", mode),
        "_cuda_get_sync_debug_mode": lambda: machine.sync_debug,
        "_graph_pool_handle": lambda: (0, next(machine.serial)),
        "_CUDAGraph": Graph,
        "_CudaStreamBase": Stream,
        "_CudaEventBase": Event,
    }


def _exchange_device(device: int) -> int:
    before = machine.chosen.device
    if device >= 0:
        machine.chosen.device = device
    return before


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    machine.chosen.device = device_index
    machine.chosen.streams[device_index] = stream_id


def _memory_stats(device: int) -> dict[str, Any]:
    memory = machine.devices[device]
    return {
        "allocated_bytes": {"all": {"current": memory.allocated, "peak": memory.peak}},
        "reserved_bytes": {"all": {"current": memory.reserved, "peak": memory.reserved}},
        "allocation": {"all": {"allocated": memory.allocations}},
    }


def _memory_info(device: int) -> tuple[int, int]:
    machine.forbid_in_captures("cudaMemGetInfo")
    return machine.devices[device].free, machine.devices[device].limit


def _properties(device: Any = None) -> SimpleNamespace:
    index = machine.chosen.device if device is None else torch.cuda._utils._get_device_index(device, optional=True)
    major, minor = machine.capability
    return SimpleNamespace(
        name=f"Pretended GPU {index}",
        major=major,
        minor=minor,
        total_memory=machine.devices[index].limit,
        multi_processor_count=4,
        is_integrated=False,
    )


def _patch_cuda() -> None:
    """Where torch.cuda decided when it was imported that there is no CUDA."""
    cuda = torch.cuda
    torch.backends.cuda.is_built = lambda: True
    cuda._is_compiled = cuda.is_available = lambda: True
    cuda.device_count = lambda: len(machine.devices)
    cuda._initialized, cuda._lazy_init = True, lambda: None
    cuda._exchange_device = cuda._maybe_exchange_device = _exchange_device
    cuda.get_device_properties = _properties
    cuda.manual_seed = cuda.manual_seed_all = lambda seed: None
    cuda.cudart = lambda: SimpleNamespace(
        cudaMemGetInfo=_memory_info,
        cudaError=SimpleNamespace(success=0),
        cudaDeviceSynchronize=torch._C._cuda_synchronize,
    )
    importlib.reload(cuda.streams)  # their classes inherit from the bindings
    importlib.reload(cuda.graphs)
    for module, names in ((cuda.streams, ("Stream", "Event", "ExternalStream")), (cuda.graphs, cuda.graphs.__all__)):
        for name in names:
            setattr(cuda, name, getattr(module, name))


def _patch_tensors() -> None:
    """The ways from the CPU to a device, which a PyTorch without CUDA refuses before any operator is called."""
    torch.Tensor.to = _to
    torch.Tensor.cuda = _cuda
    torch.Tensor.pin_memory = lambda self, device=None: pin(self.clone())
    torch.tensor, torch.as_tensor = _with_device(torch.tensor), _with_device(torch.as_tensor)
    for name in ("empty", "zeros", "ones", "full", "empty_like"):
        setattr(torch, name, _with_pinning(getattr(torch, name)))
    # Moving a module by `parameter.data = ...` would leave the wrapper behind.
    torch.__future__.set_swap_module_params_on_conversion(True)


_tensor_to = torch.Tensor.to


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    other = kwargs.pop("other", args[0] if args and isinstance(args[0], torch.Tensor) else None)
    if other is not None:
        args = (other.device, other.dtype, *args[1:])
    if args and isinstance(args[0], int):
        args = (torch.device("cuda", args[0]), *args[1:])
    copy = kwargs.pop("copy", False)
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    there = None if device is None else index_of(device)
    if there is None and not isinstance(self, CudaTensor):
        return _tensor_to(self, *args, copy=copy, **kwargs)
    device = self.device if device is None else device if there is None else torch.device("cuda", there)
    if device == self.device and dtype in (None, self.dtype) and not copy:
        return self
    options = {"dtype": dtype, "memory_format": memory_format}
    options = {name: option for name, option in options.items() if option is not None}
    if isinstance(self, CudaTensor):  # by way of autograd
        return torch.ops.aten._to_copy.default(self, device=device, non_blocking=non_blocking, **options)
    return copy_to(self, device=device, non_blocking=non_blocking, **options)


def _cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False) -> torch.Tensor:
    index = machine.chosen.device if device is None else torch.cuda._utils._get_device_index(device)
    return _to(self, torch.device("cuda", index), non_blocking=non_blocking)


def _with_device(right: Any) -> Any:
    def make(data: Any, *, dtype: Any = None, device: Any = None, pin_memory: bool = False, **more: Any) -> Any:
        if isinstance(data, CudaTensor):
            made = data if right.__name__ == "as_tensor" else data.clone()
        else:
            made = right(data, dtype=dtype, **more)
        made = pin(made) if pin_memory else made
        return made if device is None else made.to(device, dtype=dtype or made.dtype)

    return make


def _with_pinning(right: Any) -> Any:
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        made = right(*args, **kwargs)
        return pin(made) if pin_memory else made

    return make
