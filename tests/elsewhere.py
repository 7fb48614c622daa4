"""Subprocesses that cannot import this project, as for the receiver of an exported folder."""

import json
import os

import fresh
import torch

TOKENS = torch.arange(3, 43).view(2, 20)

# Script that loads each folder, compares generation with and without a cache, and optionally saves
# the model and loads it again. Saves logits, or the traceback of an error, by folder.
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


# Start of the scripts: a separate folder for copies of remote code, which transformers chooses at
# import, and a cache of parsed code. transformers parses the code of a folder for its config, its
# model and each copy to check the imports, which takes longer than all other steps.
PREPARE = """
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
    """Run a script in a process in which neither the working folder nor the path leads to this
    project.
    """
    hub_settings = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(cwd / "hf"),
        "TRANSFORMERS_VERBOSITY": "error",
    }
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    } | hub_settings
    done = fresh.outside().run(["-c", PREPARE + script, *arguments], environment, cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def loaded_elsewhere(folders, cwd, save_again=None):
    """Return the logits for TOKENS, or the traceback, of each folder in a subprocess. save_again:
    whether to save and load each model again, by default true.
    """
    save_again = [True] * len(folders) if save_again is None else save_again
    requests = [
        (str(folder), once_more) for folder, once_more in zip(folders, save_again, strict=True)
    ]
    elsewhere(LOAD, json.dumps(requests), str(cwd / "logits.pt"), cwd=cwd)
    return torch.load(cwd / "logits.pt")
