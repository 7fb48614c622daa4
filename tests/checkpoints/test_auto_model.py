"""Exports with AutoModel and inference servers: the body loads separately, and attention calls the
function and passes the arguments that the server sets.
"""

import pytest
import torch
from elsewhere import TOKENS
from transformers import AutoModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import lrcore


@pytest.fixture(scope="module")
def exports(tiny_llama, story_file, tmp_path_factory):
    """Return a model and the folder of its export, by method."""
    dense = lrcore.load(str(tiny_llama))
    made = {}
    for method in ("svd_llm", "modegpt"):
        recipe = lrcore.Recipe(
            str(tiny_llama), data=str(story_file), samples=2, seq_len=24, method=method
        )
        small = lrcore.compress(dense, recipe)
        made[method] = small, lrcore.export(small, tmp_path_factory.mktemp("body") / method)
    return made


@pytest.mark.parametrize("method", ["svd_llm", "modegpt"])
def test_the_body_loads_without_its_head(exports, method) -> None:
    small, folder = exports[method]
    body = AutoModel.from_pretrained(folder, trust_remote_code=True)
    assert not hasattr(body, "lm_head")
    with torch.inference_mode():
        expected = small.network.base_model(TOKENS).last_hidden_state
        assert torch.allclose(body(TOKENS).last_hidden_state, expected, atol=1e-6)


def test_a_server_can_replace_the_attention_function(exports, monkeypatch) -> None:
    handed = []

    def counted(module, *states, **options):
        handed.append((module.layer_idx, options["server"]))
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, *states, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "counted", counted)
    _, folder = exports["svd_llm"]
    body = AutoModel.from_pretrained(folder, trust_remote_code=True, attn_implementation="counted")
    assert body._supports_attention_backend
    body(TOKENS, server="this", use_cache=False)
    assert handed == [(layer, "this") for layer in range(body.config.num_hidden_layers)]
