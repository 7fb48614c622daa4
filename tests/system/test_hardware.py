"""The hardware that a model runs on."""

import torch

from lrcore.system.hardware import Hardware, hardware


def test_the_memory_of_a_processor_is_what_this_process_may_take():
    device = hardware("cpu")
    assert device.kind == "CPU"
    assert device.free is None or 0 < device.free <= device.total


def test_what_torch_holds_unused_of_a_gpu_is_free(monkeypatch):
    """The answers of a GPU stand in for one."""
    answers = {
        "mem_get_info": (10, 100),
        "memory_reserved": 30,
        "memory_allocated": 25,
        "get_device_name": "NVIDIA H200",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    assert hardware("cuda:0") == Hardware("GPU", "NVIDIA H200", 15, 100)
