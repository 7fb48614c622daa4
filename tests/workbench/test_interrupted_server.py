"""A server that gets Ctrl+C during a job, in a process that Python ends itself."""

import os
import signal
import subprocess
import sys
import time

from gradio_client import Client
from interrupts import hears_ctrl_c
from page_server import PATIENCE, ROOT, free_port

SLOW = {"model": "demo-llama", "method": "fused", "ratio": 0.3, "samples": 4, "seq_len": 64}


def test_ctrl_c_during_a_job_ends_the_server_without_an_error(tmp_path):
    port, output_file = free_port(), tmp_path / "said"
    folders = {"LRCORE_RUNS": str(tmp_path / "runs"), "LRCORE_CACHE": str(tmp_path / "cache")}

    def wait_for_output(words: str) -> None:
        end = time.monotonic() + PATIENCE
        while words not in output_file.read_text():
            assert process.poll() is None, output_file.read_text()
            assert time.monotonic() < end, output_file.read_text()
            time.sleep(0.02)

    with output_file.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "app.py", "--port", str(port)],
            cwd=ROOT,
            env=os.environ | folders,
            stdout=log,
            stderr=log,
            preexec_fn=hears_ctrl_c,
        )
        try:
            wait_for_output("Running on http")
            client = Client(f"http://127.0.0.1:{port}", verbose=False)
            client.submit(SLOW, "slow", api_name="/compress")
            wait_for_output(": compress 0/")
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0, output_file.read_text()
        finally:
            process.kill()
    assert "terminate called" not in output_file.read_text()
    assert "Traceback" not in output_file.read_text()
