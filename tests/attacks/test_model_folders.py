"""Model folders that name code, or places elsewhere: no code is run, and no other place is read."""

import json
import shutil

import pytest

import lrcore
from lrcore.evaluation.evaluate import token_losses

CODE = "from pathlib import Path\nPath({marker!r}).mkdir()\nclass Own: pass\n"
ESCAPES = (
    "{{{{ cycler.__init__.__globals__.os.mkdir({marker!r}) }}}}",
    "{{{{ ''.__class__.__mro__[1].__subclasses__() }}}}",
    "{{% for x in range(10**12) %}}x{{% endfor %}}",
    "{{% include '/etc/passwd' %}}",
)
LEADING = {
    "auto_map in config.json": (
        "config.json",
        {"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}},
    ),
    "auto_map of a family of its own": (
        "config.json",
        {"model_type": "mine", "auto_map": {"AutoConfig": "own.Own"}},
    ),
    "auto_map of another repository": (
        "config.json",
        {"auto_map": {"AutoModelForCausalLM": "owner/name--own.Own"}},
    ),
    "auto_map of a tokenizer": (
        "tokenizer_config.json",
        {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"},
    ),
    "code that generates": ("generation_config.json", {"custom_generate": "own.py"}),
    "a processor": ("processor_config.json", {"auto_map": {"AutoProcessor": "own.Own"}}),
}


@pytest.fixture
def marker(tmp_path):
    """A folder that hostile code would make; once the test ends it must not be there."""
    yield tmp_path / "executed"
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def folder(tmp_path, tiny_llama, marker):
    """A model with a file of code."""
    made = tmp_path / "model"
    shutil.copytree(tiny_llama, made)
    for name in ("own.py", "generate.py", "model.py"):
        (made / name).write_text(CODE.format(marker=str(marker)))
    (made / "custom_generate").mkdir()
    shutil.copy(made / "own.py", made / "custom_generate" / "generate.py")
    return made


def change(file, **fields):
    values = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(values | fields))


def used_or_refused(path):
    """Load a model and let it write: what cannot be loaded is refused in one sentence."""
    message = ""
    try:
        lrcore.generate(lrcore.load(path), "Once", max_new_tokens=2)
    except lrcore.InputError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("case", LEADING)
def test_code_that_a_model_names_is_not_run(case, folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    name, fields = LEADING[case]
    change(folder / name, **fields)
    used_or_refused(str(folder))


@pytest.mark.parametrize("case", LEADING)
def test_code_that_a_checkpoint_names_is_not_run(case, care, folder, marker, tmp_path):
    small = lrcore.save(care, tmp_path / "small")
    shutil.copy(folder / "own.py", small)
    name, fields = LEADING[case]
    change(small / name, **fields)
    used_or_refused(str(small))


def test_an_export_loads_here_without_its_code(care, marker, tmp_path):
    out = tmp_path / "export"
    lrcore.export(care, out)
    for code in out.glob("*.py"):
        code.write_text(CODE.format(marker=str(marker)))
    used_or_refused(str(out))


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_is_carried_along_and_never_rendered(
    template, folder, marker, tmp_path, story_file, monkeypatch
):
    def never(*_, **__):
        pytest.fail("a chat template was rendered")

    monkeypatch.setattr("transformers.utils.chat_template_utils.render_jinja_template", never)
    monkeypatch.setattr("transformers.utils.chat_template_utils._compile_jinja_template", never)
    written = template.format(marker=str(marker))
    (folder / "chat_template.jinja").write_text(written)
    change(folder / "tokenizer_config.json", chat_template=written)
    used_or_refused(str(folder))
    model = lrcore.load(str(folder))
    recipe = lrcore.Recipe(
        str(folder), data=str(story_file), method="care", samples=2, seq_len=16, ratio=0.3
    )
    small = lrcore.compress(model, recipe)
    lrcore.evaluate(small, str(story_file), samples=2, seq_len=16)
    lrcore.export(small, tmp_path / "export")
    used_or_refused(str(lrcore.save(small, tmp_path / "small")))


@pytest.mark.parametrize("base", ["/etc", "owner/elsewhere"])
def test_an_adapter_beside_a_model_is_refused(base, folder):
    """transformers would put it in, and reads adapters of adapters wherever they are."""
    about = {"base_model_name_or_path": base, "peft_type": "LORA", "task_type": "CAUSAL_LM"}
    change(folder / "adapter_config.json", **about)
    for offload in (False, True):
        with pytest.raises(lrcore.InputError, match="contains an adapter"):
            lrcore.load(str(folder), offload=offload)


TOKENIZERS = {
    "nested": "[" * 100_000 + "]" * 100_000,
    "nested objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "a number": "1e999",
    "of no model": "{}",
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_hostile_tokenizer_is_used_or_refused_in_a_sentence(case, folder):
    (folder / "tokenizer.json").write_text(TOKENIZERS[case])
    with pytest.raises(lrcore.InputError):
        lrcore.load(str(folder))


def test_an_id_that_the_embedding_lacks_is_refused(folder):
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] = {name: 2**20 - at for name, at in content["model"]["vocab"].items()}
    file.write_text(json.dumps(content))
    with pytest.raises(lrcore.InputError, match="belongs to another model"):
        lrcore.generate(lrcore.load(str(folder)), "Once", max_new_tokens=2)


def test_a_pattern_that_never_ends_is_refused(folder, tmp_path):
    """The library panics, and what it raises then is no `Exception`."""
    never = {"Regex": "(a+)+$"}
    split = {"type": "Split", "pattern": never, "behavior": "Isolated", "invert": False}
    change(folder / "tokenizer.json", pre_tokenizer=split)
    model, text = lrcore.load(str(folder)), "a" * 40 + "!"
    (tmp_path / "a.txt").write_text(text)
    for work in (
        lambda: lrcore.generate(model, text),
        lambda: token_losses(model, text),
        lambda: lrcore.evaluate(model, str(tmp_path / "a.txt"), samples=1, seq_len=8),
    ):
        with pytest.raises(lrcore.InputError, match="The tokenizer failed on a text of 41"):
            work()
