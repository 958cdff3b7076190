"""The pretended device itself: it refuses, counts and emulates what its description says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fakecuda import FakeCudaError, machine
from tests.fakecuda.cases.lanes import in_a_thread

GPU = torch.device("cuda:0")
MIB = 1 << 20


def captured(once: Callable[[], Tensor], stream: torch.cuda.Stream | None = None, **how: object):
    """A graph of some work, and where its result lies."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream or torch.cuda.Stream(), **how):
        result = once()
    return graph, result


# --- Tensors ---


def test_operands_of_two_devices_are_refused() -> None:
    x = torch.ones(2, device=GPU)
    for other in (torch.ones(2), torch.ones(2, device="cuda:1")):
        with pytest.raises(FakeCudaError, match="same device"):
            x + other
    with pytest.raises(FakeCudaError, match="same device"):
        torch.cat((x, torch.ones(1)))
    assert (x + torch.tensor(1.0)).tolist() == [2, 2]  # a number may come from the CPU


def test_numbers_and_places_are_the_cpus() -> None:
    x = torch.arange(12, device=GPU).view(3, 4)
    y = torch.arange(12).view(3, 4)
    for key in (
        1,
        (slice(1, 3), 2),
        (..., None, 0),
        [2, 0],
        (slice(None), torch.tensor([1, 1])),
        y > 4,
        torch.tensor(1),
    ):
        assert torch.equal(x[key].cpu(), y[key])
    x[1, 2:], y[1, 2:] = -1, -1
    x[:, torch.tensor([0, 1], device=GPU)] = 7
    y[:, torch.tensor([0, 1])] = 7
    assert x.device == GPU
    assert torch.equal(x.cpu(), y)


def test_what_the_host_waits_for_is_counted_by_kind() -> None:
    x = torch.zeros(3, device=GPU)
    x.add_(1)
    assert not machine.counts.waits
    for work, kind in {
        lambda: x[0].item(): "D2H item",
        lambda: x.tolist(): "D2H tolist",
        lambda: x.cpu(): "D2H copy",
        lambda: x.nonzero(): "nonzero",
        lambda: x[x > 0]: "index by a mask",
        lambda: torch.ones(3).to(GPU): "H2D copy, pageable",
        lambda: torch.tensor([1], device=GPU): "H2D copy, pageable",
        lambda: x[torch.tensor([0])]: "H2D copy, pageable",
        lambda: x[torch.zeros((), dtype=torch.long, device=GPU)]: "D2H item",
        lambda: torch.cuda.synchronize(): "torch.cuda.synchronize",
    }.items():
        machine.reset_counts()
        work()
        assert machine.counts.waits == {(kind, "elsewhere"): 1}


def test_a_copy_from_pinned_memory_waits_for_nothing() -> None:
    assert torch.ones(3).pin_memory().to(GPU, non_blocking=True).device == GPU
    assert not machine.counts.waits


def test_an_asynchronous_copy_to_the_host_arrives_when_somebody_waits() -> None:
    there = torch.ones(2, device=GPU).to("cpu", non_blocking=True)
    assert there.isnan().all()
    assert not machine.counts.waits
    torch.cuda.current_stream().synchronize()
    assert there.tolist() == [1, 1]


def test_waits_are_told_in_the_debug_mode_of_torch() -> None:
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="synchronizing"):
        torch.ones(1, device=GPU).item()


def test_memory_that_nobody_has_written_is_nan() -> None:
    assert torch.empty(3, device=GPU).isnan().all()
    assert torch.empty_like(torch.ones(3, device=GPU)).isnan().all()


def test_operators_that_are_no_views_are_launches() -> None:
    x = torch.ones(2, 3, device=GPU)
    machine.reset_counts()
    y = x.t()[1:].unsqueeze(0)[0, None]
    assert machine.counts.launches == 0
    y.mul_(2).add(1)
    F.rms_norm(x, (3,), torch.ones(3, device=GPU))  # with the ones
    assert machine.counts.launches == 4


# --- Graphs ---


def test_a_capture_computes_nothing_and_a_replay_computes_on_what_lies_there() -> None:
    x = torch.ones(2, device=GPU)
    graph, y = captured(lambda: x.add_(1) * 2)
    assert x.tolist() == [1, 1]
    assert y.isnan().all()
    graph.replay()
    assert y.tolist() == [4, 4]
    x.fill_(10)
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([11, 11], [22, 22])


def test_what_a_capture_made_is_counted_when_it_is_replayed() -> None:
    x = torch.ones(2, device=GPU)
    machine.reset_counts()
    graph, _ = captured(lambda: (x + 1).view(1, 2) * 2)
    assert (machine.counts.captures, machine.counts.launches) == (1, 0)
    graph.replay()
    assert (machine.counts.replays, machine.counts.kernels_replayed, machine.counts.launches) == (1, 2, 1)


def test_a_number_of_pythons_stays_what_it_was_at_the_capture() -> None:
    x, place = torch.arange(4, device=GPU), [1]
    graph, y = captured(lambda: x[place[0]] * 1)
    place[0] = 3
    graph.replay()
    assert y.item() == 1


def test_a_number_on_the_cpu_is_recorded_by_its_value() -> None:
    x, number = torch.ones(2, device=GPU), torch.tensor(2.0)
    graph, y = captured(lambda: x * number)
    number.fill_(5)
    graph.replay()
    assert y.tolist() == [2, 2]


def test_a_graph_whose_input_is_gone_cannot_be_replayed() -> None:
    held = [torch.ones(2, device=GPU)]
    graph, _ = captured(lambda: held[0] * 2)
    held[0] = torch.ones(2, device=GPU)
    with pytest.raises(FakeCudaError, match="tensor that is gone"):
        graph.replay()


def test_replaying_a_graph_spoils_results_of_later_ones_in_its_pool() -> None:
    x, pool = torch.ones(2, device=GPU), torch.cuda.graph_pool_handle()
    (first, y), (second, z) = (captured(lambda: x * 2, pool=pool) for _ in range(2))
    first.replay()
    second.replay()
    assert y.tolist() == z.tolist() == [2, 2]
    first.replay()
    assert y.tolist() == [2, 2]
    assert z.isnan().all()


def test_graphs_of_different_pools_leave_each_other_alone() -> None:
    x = torch.ones(2, device=GPU)
    (first, _), (second, z) = (captured(lambda: x * 2) for _ in range(2))
    second.replay()
    first.replay()
    assert z.tolist() == [2, 2]


@pytest.mark.parametrize("workspaces", ["error", "count", "off"])
def test_destroying_a_graph_frees_the_workspace_of_others_on_its_stream(workspaces: str) -> None:
    machine.workspaces = workspaces
    x, stream = torch.ones(2, 2, device=GPU), torch.cuda.Stream()
    (graph, _), (other, _) = captured(lambda: x @ x, stream), captured(lambda: x @ x, stream)
    elsewhere, _ = captured(lambda: x @ x, torch.cuda.Stream())
    without, _ = captured(lambda: x * x, stream)
    graph.replay()
    del other
    elsewhere.replay()
    without.replay()
    if workspaces == "error":
        with pytest.raises(FakeCudaError, match="workspace"):
            graph.replay()
    else:
        graph.replay()
    assert machine.counts.freed_workspaces.total() == (workspaces != "off")


def test_torch_hands_out_the_same_32_streams_in_turn() -> None:
    streams = [torch.cuda.Stream() for _ in range(33)]
    assert len({stream.stream_id for stream in streams}) == 32
    assert streams[0] == streams[32]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: torch.tensor([1], device=GPU),
        lambda x: torch.ones(1).pin_memory().to(GPU, non_blocking=True),
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.mem_get_info(),
        lambda x: torch.zeros(1, device="cuda:1"),
    ],
)
@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_a_capture_fails_where_the_host_waits_or_works_elsewhere(work: Callable[[Tensor], object], mode: str) -> None:
    x = torch.ones(2, device=GPU)
    with pytest.raises(FakeCudaError, match="during capture") as raised:
        captured(lambda: work(x + 1), capture_error_mode=mode)
    assert isinstance(raised.value.__context__, FakeCudaError)
    assert not machine.captures


def test_the_default_stream_cannot_be_captured() -> None:
    with pytest.raises(FakeCudaError, match="non-default"):
        torch.cuda.CUDAGraph().capture_begin()


@pytest.mark.parametrize("ask", [torch.cuda.mem_get_info, torch.cuda.synchronize])
def test_another_thread_breaks_a_global_capture_only(ask: Callable[[], object]) -> None:
    x = torch.ones(2, device=GPU)
    answers: list[object] = []

    def once() -> Tensor:
        answers.append(in_a_thread(ask))
        return x * 2

    graph, y = captured(once, capture_error_mode="thread_local")
    graph.replay()
    assert y.tolist() == [2, 2]
    with pytest.raises(FakeCudaError, match="during capture"):
        captured(once)
    assert [isinstance(answer, FakeCudaError) for answer in answers] == [False, True]


def test_work_of_another_thread_is_no_part_of_a_capture() -> None:
    x = torch.ones(2, device=GPU)
    graph, y = captured(lambda: x * in_a_thread(lambda: torch.full((2,), 3.0, device=GPU)))
    with pytest.raises(FakeCudaError, match="tensor that is gone"):
        graph.replay()
    del y


# --- Threads and devices ---


def test_each_thread_has_its_device_and_stream() -> None:
    torch.cuda.set_device(1)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.cuda.current_stream().stream_id != 0
        assert in_a_thread(torch.cuda.current_device) == 0
        assert in_a_thread(lambda: torch.cuda.current_stream().stream_id) == 0
        assert in_a_thread(lambda: torch.zeros(1, device="cuda").device.index) == 0
    assert torch.zeros(1, device="cuda").device.index == 1


def test_a_device_needs_an_index_to_be_set() -> None:
    with pytest.raises(ValueError, match="specified index"):
        torch.cuda.set_device(torch.device("cuda"))


def test_events_of_two_devices_measure_nothing() -> None:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    events[0].record()
    events[1].record()
    with torch.cuda.device(1):
        events[2].record()
        with pytest.raises(FakeCudaError, match="does not match"):
            events[0].record()
    assert events[0].elapsed_time(events[1]) > 0
    with pytest.raises(FakeCudaError, match="two devices"):
        events[0].elapsed_time(events[2])


# --- Memory ---


def test_memory_is_given_back_when_its_last_tensor_dies() -> None:
    before = torch.cuda.memory_allocated()
    x = torch.zeros(MIB, dtype=torch.uint8, device=GPU)
    part = x[:10]
    del x
    assert torch.cuda.memory_allocated() == before + MIB
    del part
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() == before + MIB
    assert torch.cuda.memory_allocated(1) == 0


def test_the_allocator_keeps_memory_until_it_is_told_not_to() -> None:
    free, total = torch.cuda.mem_get_info()
    x = torch.zeros(MIB, dtype=torch.uint8, device=GPU)
    del x
    assert torch.cuda.mem_get_info() == (free - MIB, total)
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info() == (free, total)


def test_a_graph_keeps_its_pool() -> None:
    x, before = torch.zeros(MIB, device=GPU), torch.cuda.memory_allocated()
    graph, y = captured(lambda: (x + 1) * 2)
    both = 8 * MIB
    assert torch.cuda.memory_allocated() == before + both
    del y
    assert torch.cuda.memory_allocated() == before + both
    del graph
    assert torch.cuda.memory_allocated() == before


def test_memory_runs_out_at_the_limit() -> None:
    machine.devices[0].limit = machine.devices[0].allocated + 2 * MIB
    x = torch.zeros(MIB, dtype=torch.uint8, device=GPU)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.zeros(MIB + 1, dtype=torch.uint8, device=GPU)
    torch.zeros(MIB, dtype=torch.uint8, device=GPU)
    torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda:1")
    assert x.device == GPU


@pytest.mark.parametrize("at", [1, 2, 3])
def test_memory_runs_out_at_the_allocation_that_was_chosen(at: int) -> None:
    done: list[Tensor] = []
    machine.devices[0].fail_at = at
    with pytest.raises(torch.OutOfMemoryError):
        done.extend(torch.zeros(2, device=GPU) for _ in range(3))
    assert len(done) == at - 1
    assert torch.zeros(2, device=GPU).tolist() == [0, 0]  # that one only


def test_memory_can_run_out_inside_a_capture() -> None:
    x = torch.ones(2, device=GPU)
    machine.devices[0].fail_at = 2
    with pytest.raises(torch.OutOfMemoryError):
        captured(lambda: (x + 1) * 2)
    assert not machine.captures
    graph, y = captured(lambda: (x + 1) * 2)
    graph.replay()
    assert y.tolist() == [4, 4]


# --- Attention ---


@pytest.mark.parametrize(
    ("capability", "dtype", "masked", "backend"),
    [
        ((9, 0), torch.bfloat16, True, "cudnn"),
        ((9, 0), torch.float32, True, "efficient"),
        ((8, 0), torch.bfloat16, True, "efficient"),
        ((8, 0), torch.bfloat16, False, "flash"),
        ((7, 5), torch.bfloat16, True, "math"),
        ((7, 5), torch.float16, False, "efficient"),
    ],
)
def test_attention_runs_where_torch_would_send_it(
    capability: tuple[int, int], dtype: torch.dtype, masked: bool, backend: str
) -> None:
    machine.capability = capability
    assert torch.cuda.get_device_capability(0) == capability
    query, key = torch.randn(2, 1, 2, 4, 8, dtype=dtype)
    mask = torch.ones(4, 4, dtype=torch.bool).tril() if masked else None
    there = F.scaled_dot_product_attention(*(x.to(GPU) for x in (query, key, key)), mask.to(GPU) if masked else None)
    torch.testing.assert_close(there.cpu(), F.scaled_dot_product_attention(query, key, key, mask), atol=0.02, rtol=0.02)
    assert machine.counts.attention == {(backend, (1, 2, 4, 8), (1, 2, 4, 8), masked): 1}


def test_cudnn_is_not_chosen_where_it_is_switched_off() -> None:
    x = torch.randn(1, 1, 2, 8, dtype=torch.bfloat16).to(GPU)
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        F.scaled_dot_product_attention(x, x, x)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    assert [backend for backend, *_ in machine.counts.attention] == ["flash"]
