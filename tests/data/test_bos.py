"""The beginning-of-text token in windows of calibration and evaluation."""

import json

import pytest
import torch
from tokenizers.processors import TemplateProcessing

import lrcore
from lrcore.cli import main
from lrcore.cli.runs import protocol
from lrcore.compression.calibration.calibrate import make_calibration_windows
from lrcore.data import begin_with, bos_token
from lrcore.evaluation.evaluate import window_losses
from lrcore.runs.sweep import Sweep
from lrcore.runs.sweep_store import cells
from lrcore.system.errors import InputError

BOS = 0


@pytest.fixture(scope="module")
def model(tiny_llama):
    return lrcore.load(str(tiny_llama))


@pytest.fixture(scope="module")
def adding(tiny_llama):
    """Return a model with a tokenizer that adds <s> to texts."""
    model = lrcore.load(str(tiny_llama))
    model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return model


def recipe(model, file, **changes):
    return lrcore.Recipe(str(model.folder), data=str(file), samples=4, seq_len=16, **changes)


def windows_of(model, file, **changes):
    return make_calibration_windows(model, recipe(model, file, **changes))


def test_bos_always_puts_the_token_before_the_same_text(model, story_file):
    plain, windows = windows_of(model, story_file), windows_of(model, story_file, bos="always")
    assert windows.tokens[:, 0].tolist() == [BOS] * 4
    assert torch.equal(windows.tokens[:, 1:], plain.tokens[:, :-1])
    assert torch.equal(windows.starts, plain.starts)
    assert windows.key != plain.key
    assert windows.protocol == plain.protocol | {"bos": "always"}
    text = "".join(model.tokenizer.batch_decode(windows.tokens[:, 1:]))
    # windows may cut characters
    assert windows.predicted_bytes == pytest.approx(len(text.encode()), abs=12)


def test_bos_auto_follows_the_tokenizer(model, adding, story_file):
    plain = windows_of(model, story_file)
    assert windows_of(model, story_file, bos="auto").key == plain.key
    always, automatic = (windows_of(adding, story_file, bos=bos) for bos in ("always", "auto"))
    assert automatic.key == always.key != plain.key
    assert windows_of(adding, story_file).key == plain.key  # the default is never


def test_a_tokenizer_without_the_token_and_an_unknown_setting_are_refused(tiny_llama):
    tokenizer = lrcore.load(str(tiny_llama)).tokenizer
    tokenizer.bos_token = None
    assert bos_token(tokenizer, "auto") is None
    with pytest.raises(InputError, match="no beginning-of-text token"):
        bos_token(tokenizer, "always")
    for make in (lrcore.Recipe, lambda bos: bos_token(tokenizer, bos)):
        with pytest.raises(InputError, match="Did you mean 'always'"):
            make(bos="alway")


def test_a_window_that_begins_with_the_token_is_unchanged():
    tokens = torch.tensor([[BOS, 5, 6], [4, 5, 6]])
    assert begin_with(tokens, BOS).tolist() == [[BOS, 5, 6], [BOS, 4, 5]]
    assert begin_with(tokens, None) is tokens


def test_evaluation_scores_the_text_after_the_token(model, story_file):
    settings = {"samples": 4, "seq_len": 16}
    plain = lrcore.evaluate(model, str(story_file), **settings)
    assert "bos" not in plain.protocol
    result = lrcore.evaluate(model, str(story_file), bos="always", **settings)
    ids = model.tokenizer(story_file.read_text(encoding="utf-8")).input_ids
    windows = torch.tensor([[BOS, *ids[16 * i : 16 * i + 15]] for i in range(4)])
    assert result.nll == pytest.approx(float(window_losses(model, windows).double().mean()))
    assert result.protocol["bos"] == "always"
    assert "bos always" in protocol(result.protocol)
    assert protocol(plain.protocol) == protocol(plain.protocol | {"bos": ""})
    with pytest.raises(InputError, match="Use protocol 'windows'"):
        lrcore.evaluate(model, str(story_file), protocol="strided", bos="auto")


def test_all_windows_of_a_calibration_begin_with_the_token(model, story_file):
    plain, with_token = (
        lrcore.calibrate(model, recipe(model, story_file, bos=bos)) for bos in ("never", "always")
    )
    assert plain.key != with_token.key
    assert (with_token.unseen_tokens[:, 0] == BOS).all()
    assert torch.equal(with_token.unseen_tokens[:, 1:], plain.unseen_tokens[:, :-1])


def test_identities_contain_the_setting_unless_it_is_the_default(model):
    assert "bos" not in lrcore.Recipe().identity()
    assert lrcore.Recipe(bos="auto").identity()["bos"] == "auto"
    assert lrcore.Recipe.from_dict({"model": "demo-llama"}).bos == "never"

    def key(bos):
        evaluation = lrcore.EvaluationSettings("stories", bos=bos)
        return cells(model, Sweep(lrcore.Recipe(), evaluations=(evaluation,)))[0].key

    assert key("never") != key("auto")


def test_the_command_line_has_an_option_for_the_token(tiny_llama, story_file, capsys):
    flags = ["--data", str(story_file), "--seq-len", "16", "--bos", "always", "--json"]
    main(["evaluate", str(tiny_llama), *flags])
    assert json.loads(capsys.readouterr().out)["protocol"]["bos"] == "always"
