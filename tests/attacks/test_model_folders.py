"""Model folders that refer to code or to other folders, which must not be run or read."""

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
CODE_REFERENCES = {
    "auto_map in config.json": (
        "config.json",
        {"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}},
    ),
    "auto_map of an unknown family": (
        "config.json",
        {"model_type": "mine", "auto_map": {"AutoConfig": "own.Own"}},
    ),
    "auto_map of a repository": (
        "config.json",
        {"auto_map": {"AutoModelForCausalLM": "owner/name--own.Own"}},
    ),
    "auto_map of a tokenizer": (
        "tokenizer_config.json",
        {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"},
    ),
    "custom_generate": ("generation_config.json", {"custom_generate": "own.py"}),
    "a processor": ("processor_config.json", {"auto_map": {"AutoProcessor": "own.Own"}}),
}


@pytest.fixture
def marker(tmp_path):
    """Return a folder that hostile code would create, and check that it does not exist."""
    yield tmp_path / "executed"
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def folder(tmp_path, tiny_llama, marker):
    """Return a model folder with files of code."""
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


def load_or_refuse(path):
    """Load a model and generate text; an error must be an error message of one line."""
    message = ""
    try:
        lrcore.generate(lrcore.load(path), "Once", max_new_tokens=2)
    except lrcore.InputError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("case", CODE_REFERENCES)
def test_code_named_by_a_model_is_not_run(case, folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    name, fields = CODE_REFERENCES[case]
    change(folder / name, **fields)
    load_or_refuse(str(folder))


@pytest.mark.parametrize("case", CODE_REFERENCES)
def test_code_named_by_a_checkpoint_is_not_run(case, care, folder, marker, tmp_path):
    small = lrcore.save(care, tmp_path / "small")
    shutil.copy(folder / "own.py", small)
    name, fields = CODE_REFERENCES[case]
    change(small / name, **fields)
    load_or_refuse(str(small))


def test_loading_an_export_does_not_run_its_code(care, marker, tmp_path):
    out = tmp_path / "export"
    lrcore.export(care, out)
    for code in out.glob("*.py"):
        code.write_text(CODE.format(marker=str(marker)))
    load_or_refuse(str(out))


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_is_not_rendered_without_conversations(
    template, folder, marker, tmp_path, story_file, monkeypatch
):
    def never(*_, **__):
        pytest.fail("a chat template was rendered")

    monkeypatch.setattr("transformers.utils.chat_template_utils.render_jinja_template", never)
    monkeypatch.setattr("transformers.utils.chat_template_utils._compile_jinja_template", never)
    written = template.format(marker=str(marker))
    (folder / "chat_template.jinja").write_text(written)
    change(folder / "tokenizer_config.json", chat_template=written)
    load_or_refuse(str(folder))
    model = lrcore.load(str(folder))
    recipe = lrcore.Recipe(
        str(folder), data=str(story_file), method="care", samples=2, seq_len=16, ratio=0.3
    )
    small = lrcore.compress(model, recipe)
    lrcore.evaluate(small, str(story_file), samples=2, seq_len=16)
    lrcore.export(small, tmp_path / "export")
    load_or_refuse(str(lrcore.save(small, tmp_path / "small")))


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_is_rendered_in_a_sandbox(template, folder, marker, tmp_path):
    (folder / "chat_template.jinja").write_text(template.format(marker=str(marker)))
    messages = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}]
    chats = tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({"messages": messages}))
    model = lrcore.load(str(folder))
    with pytest.raises(lrcore.InputError, match="cannot render a conversation"):
        lrcore.evaluate(model, str(chats), seq_len=8)


@pytest.mark.parametrize("base", ["/etc", "owner/elsewhere"])
def test_a_model_folder_with_an_adapter_is_refused(base, folder):
    """transformers would load the adapter, and adapters that it refers to, from any folder."""
    about = {"base_model_name_or_path": base, "peft_type": "LORA", "task_type": "CAUSAL_LM"}
    change(folder / "adapter_config.json", **about)
    for offload in (False, True):
        with pytest.raises(lrcore.InputError, match="contains an adapter"):
            lrcore.load(str(folder), offload=offload)


TOKENIZERS = {
    "nested": "[" * 100_000 + "]" * 100_000,
    "nested objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "a number": "1e999",
    "empty": "{}",
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_hostile_tokenizer_is_refused_with_an_error_message(case, folder):
    (folder / "tokenizer.json").write_text(TOKENIZERS[case])
    with pytest.raises(lrcore.InputError):
        lrcore.load(str(folder))


def test_a_token_id_beyond_the_embedding_is_refused(folder):
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] = {name: 2**20 - at for name, at in content["model"]["vocab"].items()}
    file.write_text(json.dumps(content))
    with pytest.raises(lrcore.InputError, match="belongs to another model"):
        lrcore.generate(lrcore.load(str(folder)), "Once", max_new_tokens=2)


def test_a_pattern_with_exponential_backtracking_is_refused(folder, tmp_path):
    """The library panics and raises an exception that is not an `Exception`."""
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
