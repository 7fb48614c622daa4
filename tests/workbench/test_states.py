"""Summary cells with the states of layers without a KV cache."""

from lrcore.layers.account import ModelAccount, SizeAndCost
from workbench import words
from workbench.views import markup


def test_states_have_a_cell_and_are_part_of_the_cache():
    def cells(state_bytes: int) -> str:
        account = ModelAccount(10, 10, 2e6, 1000, 9, state_bytes=state_bytes)
        return markup.summary(SizeAndCost(account, account).to_dict(), context=1000)

    assert words.allocation.STATES not in cells(0)
    assert "1 MB" in cells(0)  # 1000 tokens of 1000 bytes
    assert words.allocation.STATES in cells(5_000_000)
    assert "6 MB" in cells(5_000_000)
