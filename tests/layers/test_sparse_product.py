"""Products of sparse matrices with few tokens."""

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn

from lrcore.layers.forms import Sparse, dense, masked, sparse_codes, two_of_four
from lrcore.layers.modules.projections import StoredLinear
from lrcore.layers.sparse_product import TOKENS
from lrcore.models.offload import move_to_meta

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch without MKL")


def forms():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(48, 32, generator=generator)
    mask = torch.rand(48, 32, generator=generator) < 0.3
    index = mask.flatten().nonzero().flatten().int()
    pairs = torch.tensor([True, False, False, True]).repeat(48, 8)
    return {
        "sparse": Sparse(matrix.flatten()[index.long()], index, (48, 32)),
        "two_of_four": two_of_four(matrix, pairs),
        "masked": masked(matrix, mask),
        "masked_little": masked(matrix, ~mask),
        "sparse_codes": sparse_codes(matrix, mask),
    }


@torch.inference_mode()
@pytest.mark.parametrize("kind", forms())
@pytest.mark.parametrize("shape", [(32,), (1, 1, 32), (2, 3, 32), (1, TOKENS + 1, 32)])
def test_few_and_many_tokens_get_the_product_with_the_dense_matrix(kind, shape):
    form, x, bias = forms()[kind], torch.randn(*shape), torch.randn(48)
    module, expected = StoredLinear(form, bias), x.double() @ dense(form).double().mT + bias
    for _ in range(2):  # the second product uses the matrix of the first
        assert torch.allclose(module(x).double(), expected, atol=1e-6, rtol=1e-6)


@needs_mkl
@torch.no_grad()
def test_a_decoding_step_does_not_make_the_matrix_dense_again(monkeypatch):
    module, x = StoredLinear(forms()["sparse_codes"]), torch.randn(1, 1, 32)
    first = module(x)
    monkeypatch.setattr(type(module.form), "matrix", None)
    assert torch.equal(module(x), first)
    assert module.state_dict().keys() == {"values", "mask"}


@needs_mkl
@torch.no_grad()
def test_a_released_layer_does_not_keep_the_matrix():
    module = StoredLinear(forms()["sparse_codes"])
    module(torch.randn(1, 1, 32))
    kept = weakref.ref(module._kept)
    move_to_meta(nn.Sequential(module))
    assert kept() is None


@torch.no_grad()
def test_the_kept_matrix_follows_changes_of_the_numbers():
    module, x = StoredLinear(forms()["masked"]), torch.randn(1, 32)
    before = module(x)
    module.values.mul_(2)
    assert torch.allclose(module(x), 2 * before, atol=1e-6)
    module.values.data = module.values.data / 4
    assert torch.allclose(module(x), before / 2, atol=1e-6)


@torch.no_grad()
def test_copies_and_pickles_leave_the_kept_matrix_out():
    module, x = StoredLinear(forms()["masked"]), torch.randn(1, 32)
    size = len(pickle.dumps(module))
    y = module(x)
    assert len(pickle.dumps(module)) == size
    copied = copy.deepcopy(module)
    copied.values.zero_()
    assert not copied(x).any()
    assert torch.equal(module(x), y)


def test_gradients_of_few_tokens_are_those_of_the_dense_matrix():
    form, x = forms()["sparse_codes"], torch.randn(1, 32, requires_grad=True)
    module = StoredLinear(form)
    with torch.no_grad():
        module(x)  # makes the kept matrix
    module.values.requires_grad_()
    module(x).sum().backward()
    assert torch.allclose(x.grad[0], dense(form).sum(0), atol=1e-5)
    assert module.values.grad.count_nonzero() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@torch.no_grad()
def test_other_dtypes_use_the_dense_matrix(dtype):
    form = forms()["masked"]
    module, x = StoredLinear(form).to(dtype), torch.randn(1, 32, dtype=dtype)
    assert torch.equal(module(x), x @ module.form.matrix.mT)


@torch.no_grad()
def test_compiled_and_autocast_products_run():
    form, x = forms()["sparse_codes"], torch.randn(1, 32)
    module = StoredLinear(form)
    expected = x @ dense(form).mT
    module(x)
    compiled = torch.compile(module, backend="eager")
    assert torch.allclose(compiled(x), expected, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(module(x).float(), expected, atol=0.2)
