"""Uploads of exports to a hub: on request only, complete, and loadable."""

import json
import os

import fresh
import pytest
from loopback_hub import serve

import lrcore
from lrcore.cli import main

PUSH = """
import sys
from lrcore.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def hub(tmp_path):
    (tmp_path / "store").mkdir()
    with serve({}, tmp_path / "store", {"writer": True, "reader": False}) as handler:
        yield handler


@pytest.fixture
def call(hub, tmp_path):
    """Return a function that runs the command line against the hub with a token and returns exit
    code, stdout and stderr.
    """

    def run(*words, token=""):
        environment = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "hf"),
            "NO_PROXY": "*",
            "HF_TOKEN": token,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        command = ["-c", PUSH, *map(str, words)]
        done = fresh.project().run(command, os.environ | environment, tmp_path)
        return done.returncode, done.stdout, done.stderr

    return run


def test_an_export_is_uploaded_on_request_and_loads_from_the_hub(
    hub, call, tiny_llama, story_file, tmp_path
):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, method="svd_llm"
    )
    small = lrcore.compress(lrcore.load(recipe.model), recipe)
    lrcore.save(small, tmp_path / "small")
    out = tmp_path / "out"
    assert call("export", tmp_path / "small", out)[0] == 0
    assert hub.requests == []  # no request without the flag
    code, printed, err = call(
        "export", tmp_path / "small", out, "--push-to-hub", "me/small", "--json", token="writer"
    )
    assert (code, err) == (0, "")
    assert json.loads(printed)["repository"] == f"{hub.endpoint}/me/small"
    assert hub.created["me/small"] == "private"
    uploaded = hub.repositories["me/small"]
    sent = {
        path.name: path.read_bytes() for path in uploaded.iterdir() if path.name != ".gitattributes"
    }
    assert sent == {path.name: path.read_bytes() for path in out.iterdir()}
    assert any(
        requested.startswith("POST") and requested.endswith("objects/batch")
        for requested in hub.requests
    )
    code, text, err = call("generate", "me/small", "--prompt", "Once", "--max-new-tokens", "4")
    assert (code, err) == (0, "")
    assert text.strip() == ("Once" + lrcore.generate(small, "Once", max_new_tokens=4)).strip()


@pytest.mark.parametrize("token", ["", "reader"])
def test_a_refused_upload_is_reported_in_one_line_with_a_remedy(
    hub, call, tiny_llama, tmp_path, token
):
    code, out, err = call(
        "export", tiny_llama, tmp_path / "out", "--push-to-hub", "me/small", token=token
    )
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    assert "The upload to 'me/small' failed" in err
    assert "HF_TOKEN" in err
    assert (tmp_path / "out" / "config.json").is_file()  # the export remains
    assert not hub.repositories


def test_a_repository_is_public_only_on_request(tiny_llama, tmp_path, monkeypatch, capsys):
    requested = []
    monkeypatch.setattr(
        lrcore, "push", lambda folder, name, private: requested.append(private) or name
    )
    for flags in ([], ["--public"]):
        assert (
            main(
                [
                    "export",
                    str(tiny_llama),
                    str(tmp_path / "out"),
                    "--push-to-hub",
                    "me/small",
                    *flags,
                ]
            )
            == 0
        )
    assert requested == [True, False]


def test_a_folder_without_an_export_is_not_pushed(tmp_path):
    with pytest.raises(lrcore.InputError, match="not an exported model"):
        lrcore.push(tmp_path, "me/small")
