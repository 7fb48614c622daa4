"""The hardware of a model."""

import torch

from lrcore.system.hardware import Hardware, hardware


def test_the_memory_of_a_cpu_is_that_available_to_the_process():
    device = hardware("cpu")
    assert device.kind == "CPU"
    assert device.free is None or 0 < device.free <= device.total


def test_memory_reserved_but_unused_by_torch_is_free(monkeypatch):
    """Answers of torch.cuda replace a GPU."""
    answers = {
        "mem_get_info": (10, 100),
        "memory_reserved": 30,
        "memory_allocated": 25,
        "get_device_name": "NVIDIA H200",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    assert hardware("cuda:0") == Hardware("GPU", "NVIDIA H200", 15, 100)
