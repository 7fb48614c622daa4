"""A process that cannot see this project: what a stranger has who was given an exported folder."""

import json
import os

import fresh
import torch

TOKENS = torch.arange(3, 43).view(2, 20)

# Loads, runs, generates with the cache what is likeliest without it; saves again and loads that,
# where asked to. A folder that fails leaves its traceback instead of logits.
LOAD = """
import importlib.util, json, sys, traceback
import torch
from transformers import AutoModelForCausalLM
assert importlib.util.find_spec("lrcore") is None
tokens = torch.arange(3, 43).view(2, 20)

def load(folder, again):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert not model.training and not any(p.is_meta for p in model.parameters())
    greedy = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 2}
    kept = model.generate(tokens[:1], **greedy)
    with torch.inference_mode():
        free = model(kept, use_cache=False).logits.argmax(-1)
    made = kept.shape[1] - tokens.shape[1]
    assert torch.equal(kept[:, -made:], free[:, -made - 1 : -1])
    with torch.inference_mode():
        logits = model(tokens).logits
    if not again:
        return logits
    model.save_pretrained(folder + "-again")
    back = AutoModelForCausalLM.from_pretrained(folder + "-again", trust_remote_code=True)
    state = back.state_dict()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    with torch.inference_mode():
        assert torch.allclose(back(tokens).logits, logits, atol=1e-5)
    return logits

found = []
for folder, again in json.loads(sys.argv[1]):
    try:
        found.append(load(folder, again))
    except Exception:
        found.append(traceback.format_exc())
torch.save(found, sys.argv[2])
"""


# What remote code is copied to is chosen when transformers is imported. And transformers parses the
# code of a folder anew for its config, its model, and each copy, to see that what it imports is
# there, which takes longer than all else: here the same text is parsed once.
OWN_MODULES = """
import os, pathlib, sys
# `make setup` makes this project importable in every folder
sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p or ".", "lrcore"))]
import transformers.dynamic_module_utils
transformers.dynamic_module_utils.HF_MODULES_CACHE = os.environ["HF_HOME"] + "/modules"

def parse_once(parse, known={}):
    def imports(file):
        text = pathlib.Path(file).read_text(encoding="utf-8")
        if text not in known:
            known[text] = parse(file)
        return known[text]
    return imports

transformers.dynamic_module_utils.get_imports = parse_once(
    transformers.dynamic_module_utils.get_imports
)
"""


def elsewhere(script, *arguments, cwd):
    """Run a script where neither the working directory nor the path leads to this project."""
    hub_settings = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(cwd / "hf"),
        "TRANSFORMERS_VERBOSITY": "error",
    }
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    } | hub_settings
    done = fresh.outside().run(["-c", OWN_MODULES + script, *arguments], environment, cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def loaded_elsewhere(folders, cwd, save_again=None):
    """What every folder gives there for TOKENS: its logits, or the traceback of what went wrong.

    save_again: which of them are saved again and loaded once more; all by default.
    """
    save_again = [True] * len(folders) if save_again is None else save_again
    requests = [
        (str(folder), once_more) for folder, once_more in zip(folders, save_again, strict=True)
    ]
    elsewhere(LOAD, json.dumps(requests), str(cwd / "logits.pt"), cwd=cwd)
    return torch.load(cwd / "logits.pt")
