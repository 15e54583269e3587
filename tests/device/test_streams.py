"""Streams and events: selection, queries, waiting and timing."""

import threading

import pytest
import torch


def test_streams_are_distinct_and_selectable():
    first, second = torch.tpu.Stream(), torch.tpu.Stream()
    assert first != second != torch.tpu.default_stream()
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    with torch.tpu.stream(first) as _, torch.tpu.stream(None):
        assert torch.tpu.current_stream() == first
        assert torch.accelerator.current_stream() == first
        with second:  # torch.Stream's own context
            assert torch.tpu.current_stream() == second
        assert torch.tpu.current_stream() == first
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    torch.tpu.set_stream(second)
    assert torch.tpu.current_stream() == second
    torch.tpu.set_stream(torch.tpu.default_stream())
    assert isinstance(first, torch.Stream) and "tpu:0" in repr(first)


def test_current_stream_is_per_thread():
    seen = []
    with torch.tpu.stream(torch.tpu.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.tpu.default_stream()]


def test_generic_stream_and_event():
    stream = torch.Stream("tpu")
    event = torch.Event("tpu")
    assert event.query()
    event.record(stream)
    event.synchronize()
    event.wait(stream)
    stream.wait_event(event)
    stream.wait_stream(torch.tpu.current_stream())
    torch.tpu.Stream().wait_event(event)
    assert stream.query() and event.query()
    stream.synchronize()


def test_event_types_mix():
    event = torch.tpu.Event()
    assert isinstance(event, torch.tpu.Event) and isinstance(event, torch.Event)
    assert not isinstance(torch.Event("cpu"), torch.tpu.Event)
    torch.Stream("tpu").wait_event(event)
    assert isinstance(torch.tpu.Stream().record_event(), torch.tpu.Event)


def test_elapsed_time():
    start, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    x = torch.ones(256, 256, device="tpu")
    for _ in range(10):
        x = x @ x * 1e-3
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0
    assert torch.Event("tpu", enable_timing=True).query()


def test_elapsed_time_needs_timing():
    start, end = torch.tpu.Event(), torch.tpu.Event()
    start.record()
    end.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(end)


def test_event_covers_the_work_before_it():
    x = torch.ones(512, 512, device="tpu")
    for _ in range(20):
        x = x @ x * 1e-3
    event = torch.tpu.Event()
    event.record()
    event.synchronize()
    assert event.query()
    assert torch.tpu.current_stream().query()


def test_results_do_not_depend_on_streams():
    a = torch.arange(12.0, device="tpu").reshape(3, 4)
    with torch.tpu.stream(torch.tpu.Stream()):
        b = a @ a.T
    c = b + 1
    expected = a.cpu() @ a.cpu().T + 1
    torch.testing.assert_close(c.cpu(), expected)
    a.record_stream(torch.tpu.current_stream())


def test_more_work_than_the_queue_holds():
    x = torch.zeros(8, device="tpu")
    for _ in range(1000):
        x = x + 1
    torch.tpu.synchronize()
    assert x.cpu().tolist() == [1000.0] * 8


def test_work_from_several_threads():
    results = {}

    def work(seed: int) -> None:
        x = torch.full((16, 16), float(seed), device="tpu")
        start, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
        for i in range(400):
            start.record()
            x = x + 1
            end.record()
            if i % 50 == 0:
                torch.tpu.synchronize()
                assert start.elapsed_time(end) >= 0
        results[seed] = x.cpu()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(results) == [0, 1, 2, 3]
    assert all(torch.equal(x, torch.full((16, 16), seed + 400.0)) for seed, x in results.items())
