"""Calibration: moments, cache keys and resumed passes."""

import pytest
import torch

import lrcore
from lrcore.compression.calibration.calibrate import all_needs, method_needs
from lrcore.layers.statistics import Accumulator, activation_needs, missing_needs
from lrcore.methods import METHODS
from lrcore.models.architectures import architecture_of, decoder_layers
from lrcore.models.stream import LayerStream
from lrcore.system.errors import Cancelled

FOLDERS = ["tiny_llama", "tiny_llama_bias", "tiny_opt"]


@pytest.fixture(params=FOLDERS)
def model(request):
    return lrcore.load(str(request.getfixturevalue(request.param)))


@pytest.fixture
def recipe(story_file):
    return lrcore.Recipe(data=str(story_file), samples=6, seq_len=32, seed=1)


def plain_inputs(model, tokens, layer: int, path: str) -> torch.Tensor:
    """Return the inputs of a projection in an ordinary forward pass, [tokens, n] in float64."""
    caught = []
    module = decoder_layers(model.network)[layer].get_submodule(path)
    handle = module.register_forward_pre_hook(lambda _m, args: caught.append(args[0]))
    with torch.inference_mode():
        model.network(tokens)
    handle.remove()
    return caught[0].flatten(0, -2).double()


def test_moments_equal_a_plain_forward_pass(model, recipe) -> None:
    calibration = lrcore.calibrate(model, recipe)
    row = architecture_of(model.network)
    for layer in range(calibration.layers):
        moments = calibration.moments(layer)
        assert moments.tokens == calibration.tokens.numel() == 6 * 32
        for tap, path in {
            "attn_in": row.q,
            "attn_out": row.o,
            "mlp_in": row.up,
            "mlp_hidden": row.down,
        }.items():
            x = plain_inputs(model, calibration.tokens, layer, path)
            assert torch.allclose(moments.second(tap), x.T @ x / len(x), rtol=1e-4, atol=1e-6)
            if (tap, "mean") in moments.values:
                assert torch.allclose(moments.mean(tap), x.mean(0), rtol=1e-4, atol=1e-6)


def test_rotation_preserves_the_energy_of_each_pair(tiny_llama, recipe) -> None:
    """Sums of squares over pairs agree; squares of single columns differ."""
    model = lrcore.load(str(tiny_llama))
    moments = lrcore.calibrate(model, recipe).moments(1)
    weight = decoder_layers(model.network)[1].self_attn.k_proj.weight.double()
    before = (weight @ moments.second("attn_in") @ weight.T).diagonal().unflatten(0, (2, 2, 4))
    after = moments.square("k_rotated").unflatten(0, (2, 2, 4))
    assert torch.allclose(before.sum(1), after.sum(1), rtol=1e-4)
    assert not torch.allclose(before, after, rtol=1e-2)


def test_block_influence_is_one_minus_the_mean_cosine(model, recipe) -> None:
    calibration = lrcore.calibrate(model, recipe)
    with torch.inference_mode():
        states = model.network(calibration.tokens, output_hidden_states=True).hidden_states
    cosine = torch.nn.functional.cosine_similarity(states[0], states[1], dim=-1)
    assert calibration.block_influence[0] == pytest.approx(1 - float(cosine.mean()), abs=1e-5)
    assert len(calibration.block_influence) == calibration.layers


def test_second_call_uses_the_cache_and_every_setting_changes_the_key(
    tiny_llama, tiny_opt, recipe, monkeypatch
) -> None:
    model = lrcore.load(str(tiny_llama))
    first = lrcore.calibrate(model, recipe)
    monkeypatch.setattr(LayerStream, "run", lambda *_: pytest.fail("the cache was not used"))
    assert lrcore.calibrate(model, recipe).key == first.key
    monkeypatch.undo()
    variants = [
        recipe.with_(seed=2),
        recipe.with_(samples=5),
        recipe.with_(seq_len=31),
        recipe.with_(sampling="first"),
    ]
    keys = {lrcore.calibrate(model, variant).key for variant in variants}
    keys.add(lrcore.calibrate(lrcore.load(str(tiny_opt)), recipe).key)
    keys.add(lrcore.calibrate(lrcore.load(str(tiny_llama), dtype="bfloat16"), recipe).key)
    assert len(keys | {first.key}) == 7
    assert lrcore.calibrate(model, recipe.with_(method="svd", ratio=0.5)).key == first.key


def test_cancelled_calibration_resumes_after_the_last_layer(
    tiny_llama, recipe, monkeypatch
) -> None:
    model, recipe = lrcore.load(str(tiny_llama)), recipe.with_(seed=77)

    def stop_at_two(stage: str, done: int, total: int) -> None:
        if done == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        lrcore.calibrate(model, recipe, stop_at_two)
    observed, run = [], LayerStream.run

    def count(self, index, needs=(), advance=True):
        observed.append((index, bool(needs)))
        return run(self, index, needs, advance)

    monkeypatch.setattr(LayerStream, "run", count)
    calibration = lrcore.calibrate(model, recipe)
    assert observed == [(0, False), (1, False), (2, True)]
    assert calibration.moments(2).tokens == 6 * 32


def test_one_pass_collects_the_needs_of_all_methods() -> None:
    needs = [activation_needs(method.needs) for method in METHODS.values()]
    assert not any(missing_needs(method_needs, all_needs()) for method_needs in needs)


@pytest.mark.parametrize("method", ["flap", "a3", "svd_llm", "modegpt", "svd", "latentllm"])
def test_pass_for_a_method_collects_only_its_statistics_with_equal_results(
    model, recipe, method, monkeypatch, tmp_path
) -> None:
    complete = lrcore.calibrate(model, recipe)
    needs = method_needs(recipe.with_(method=method))
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    calibration = lrcore.calibrate(model, recipe, needs=needs)
    moments = calibration.moments(1)
    seconds = {need for need in moments.values if need[1] == "second"}
    assert seconds == {need for need in needs if need[1] == "second"}
    assert not missing_needs(needs, moments.values.keys())
    expected = complete.moments(1).values
    assert all(torch.equal(value, expected[need]) for need, value in moments.values.items())
    assert calibration.key == complete.key
    assert calibration.influence == complete.influence
    for layer, values in enumerate(lrcore.factorize(model, calibration, method).layers):
        of_all = lrcore.factorize(model, complete, method).layers[layer]
        assert all(torch.equal(values[name].values, of_all[name].values) for name in values)


@pytest.mark.parametrize("collected", [None, "a3"])
def test_a_cached_set_with_all_statistics_of_a_request_serves_it(
    tiny_llama, recipe, monkeypatch, tmp_path, collected
) -> None:
    model = lrcore.load(str(tiny_llama))
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    needs = None if collected is None else method_needs(recipe.with_(method=collected))
    first = lrcore.calibrate(model, recipe, needs=needs)
    monkeypatch.setattr(LayerStream, "run", lambda *_: pytest.fail("the cache was not used"))
    poorer = method_needs(recipe.with_(method="care"))  # second of attn_in, which a3 reads as well
    assert lrcore.calibrate(model, recipe, needs=poorer).folder == first.folder


def test_a_method_that_reads_more_than_was_collected_collects_the_rest(
    tiny_llama, recipe, monkeypatch, tmp_path
) -> None:
    model = lrcore.load(str(tiny_llama))
    complete = lrcore.calibrate(model, recipe)
    expected = lrcore.factorize(model, complete, "svd_llm").layers[2]
    analyzed = lrcore.analyze(model, complete).spectra
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    needs = method_needs(recipe.with_(method="flap"))
    calibration = lrcore.calibrate(model, recipe, needs=needs)
    factors = lrcore.factorize(model, calibration, "svd_llm").layers[2]
    for name, factor in factors.items():
        assert torch.allclose(factor.values, expected[name].values, rtol=1e-5, atol=1e-7)
    spectra = lrcore.analyze(model, calibration).spectra
    for key, values in spectra.items():
        assert torch.allclose(values, analyzed[key], rtol=1e-5, atol=1e-6)
    richer = lrcore.calibrate(model, recipe, needs=method_needs(recipe.with_(method="svd_llm")))
    assert richer.folder != calibration.folder
    assert not missing_needs(richer.needs, richer.moments(0).values.keys())


def test_windows_longer_than_the_context_raise(tiny_llama, recipe) -> None:
    with pytest.raises(lrcore.InputError, match="128"):
        lrcore.calibrate(lrcore.load(str(tiny_llama)), recipe.with_(seq_len=200))


def test_model_can_run_in_other_code_during_calibration(
    tiny_llama, story_file, monkeypatch, tmp_path
):
    """The hooks of a calibration do not change the outputs of the network."""
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32)
    tokens, answers, observe = torch.arange(20).unsqueeze(0), [], Accumulator.observe
    expected_logits, undisturbed = (
        model.network(tokens).logits,
        lrcore.calibrate(model, recipe).moments(1),
    )

    def meanwhile(self: Accumulator, tap: str, x: torch.Tensor) -> None:
        observe(self, tap, x)
        if len(answers) < 5:
            answers.append(None)
            answers[-1] = model.network(tokens).logits

    monkeypatch.setattr(Accumulator, "observe", meanwhile)
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    disturbed = lrcore.calibrate(model, recipe).moments(1)
    assert len(answers) == 5
    assert all(torch.equal(answer, expected_logits) for answer in answers)
    assert all(
        torch.equal(disturbed.values[need], value) for need, value in undisturbed.values.items()
    )
