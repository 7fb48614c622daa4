"""The layers that the benchmark of sparse decoding times."""

import lrcore
from benchmarks.sparse_decoding import ATOMS, KEPT, coded, coded_apart, seconds
from lrcore.layers.forms import SparseCodes, count
from lrcore.models.layers import read_layer, write_layer


def test_codes_of_gate_and_up_share_a_dictionary_and_decode() -> None:
    model = lrcore.load("demo-llama")
    layer = coded(read_layer(model.network, 0), 10)
    gate, up = layer.matrices()["gate"], layer.matrices()["up"]
    assert gate.down is up.down
    assert isinstance(up.up, SparseCodes)
    assert up.down.shape[0] == 10 * ATOMS
    assert up.up.values.numel() == 10 * up.up.shape[0]
    write_layer(model.network, layer)
    assert seconds(model.network) > 0


def test_codes_of_all_matrices_have_the_kept_parameters() -> None:
    dense = read_layer(lrcore.load("demo-llama").network, 0)
    for name, pair in coded_apart(dense).matrices().items():
        share = (count(pair.down) + count(pair.up)) / dense.matrices()[name].weight.numel()
        assert KEPT - 0.05 < share <= KEPT
