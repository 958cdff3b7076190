"""A pretended CUDA device for a PyTorch without CUDA: what the GPU code does can be tested where there is no GPU.

`install()` makes `torch.cuda.is_available()` true. A tensor "on cuda:0" is a wrapper around a CPU tensor, and every
operation on it arrives here before the CPU computes it. Python's part of torch.cuda (set_device, streams' contexts,
torch.cuda.graph, Event, memory statistics) runs as it is, over pretended C bindings. There is no way back, so whatever
uses it runs in a process of its own: `python -m pytest -p tests.fakecuda.plugin tests/fakecuda/cases/test_device.py`.

It refuses what CUDA refuses: operands on several devices; whatever waits, copies from host memory or works on another
stream inside a capture; a capture on the default stream; events of two devices; more memory than the device has.

It counts, in `machine.counts`: launches (operators that are no views, and replays), replays and the kernels in them,
captures, the backend that attention would choose, and waits of the host for the device, by kind and by the line of
specdemo that asked.

It emulates:
- memory: bytes allocated, their peak, what the allocator keeps, a limit, and a shortage at the n-th allocation; what
  nobody has written yet is NaN, and so is the host's side of an asynchronous copy until somebody waits.
- graphs: a capture computes nothing; a replay runs the recorded operations again, on the recorded memory. It fails
  where that memory is gone, and spoils the results of graphs captured later in the same pool.
- torch 2.13's workspaces of matrix products: destroying a graph frees those of its capture stream, which other graphs
  captured there still use. Replaying one is an error, unless `machine.workspaces` is "count" or "off". Streams are
  handed out from 32 a device in turn, as torch does, so two of them may be the same one.
- one current device and one current stream for each thread.

What it cannot show:
- Asynchrony: every operation is over when it returns, so a wait or a `wait_stream` that is missing goes unnoticed
  (but for copies to the host, see above), and nothing overlaps.
- Real memory: there are no fragments, no temporary buffers inside operators, no CUDA context, no workspaces' sizes;
  a graph's pool is as large as the tensors that were alive together in one of its captures.
- Real speed: launches are counted, not timed; an operator counts as one kernel, and some are several or none.
- Real kernels' rounding: the CPU computes, so there are no near ties, no half precision's overflow inside a kernel,
  no atomics in another order.
- Anything that asks the C++ side for a GPU: torch.compile, generators on the device, peer access, profilers.
"""

from __future__ import annotations

from tests.fakecuda.install import install, installed
from tests.fakecuda.machine import FakeCudaError, machine
from tests.fakecuda.tensors import CudaTensor

__all__ = ["CudaTensor", "FakeCudaError", "install", "installed", "machine"]
