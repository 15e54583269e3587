"""Processes that end while threads are still at work for them."""

import pytest

# The last backward pass's context variables have a value that takes half a second to free, in
# Python and without the GIL; in a pass that frees it on the device's thread, not on the main one.
BACKWARD = """
import contextvars, sys, threading, time
import torch

held = contextvars.ContextVar("held")
freeing = threading.Event()

class Slow:
    def __del__(self):
        if threading.current_thread() is threading.main_thread() or freeing.is_set():
            return
        freeing.set()
        time.sleep(0.5)
        print("freed", flush=True)

def backward(device):
    x = torch.ones(3, device=device, requires_grad=True)
    token = held.set(Slow())
    x.sum().backward()
    held.reset(token)

for _ in range(1000):
    backward("{device}")
    if freeing.wait(0.01):
        break
print("end", flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("device", "end", "code"),
    [
        ("tpu:0", "", 0),
        ("tpu:0", "sys.exit(3)", 3),
        ("tpu:0", "raise ValueError('the last')", 1),
        ("tpu:1", "", 0),
    ],
)
def test_backward_pass_that_is_still_being_freed(run_python, device, end, code):
    script = BACKWARD.format(device=device, end=end)
    done = run_python(script, check=False, TORCHTPU_CPU_DEVICES="2")
    assert done.returncode == code, done.stderr
    assert done.stdout.split() == ["end", "freed"]
    assert "terminate" not in done.stderr
