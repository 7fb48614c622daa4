"""Spending a budget step by step, against a straight search for the best step that fits."""

import random

import pytest
import torch

from lrcore.budget import take_known_steps, take_steps


@pytest.mark.parametrize("seed", range(60))
def test_steps_go_where_the_key_is_least_until_none_fits(seed):
    draw = random.Random(seed)
    steps = {
        (i, name): [(draw.randint(-5, 0), draw.randint(1, 9)) for _ in range(draw.randint(0, 6))]
        for i in range(4)
        for name in "kv"
    }
    taken, before = dict.fromkeys(steps, 0), draw.randint(0, 60)
    left = before

    def following(slot):
        return steps[slot][taken[slot]] if taken[slot] < len(steps[slot]) else None

    def take(slot):
        taken[slot] += 1

    take_steps(steps, left, following, take)
    keys = {s: torch.tensor([float(key) for key, _ in steps[s]]) for s in sorted(steps)}
    prices = {s: torch.tensor([price for _, price in steps[s]]) for s in steps}
    assert take_known_steps(keys, prices, before) == taken
    expected, over = dict.fromkeys(steps, 0), set()
    while offers := [
        (own[expected[slot]], slot)
        for slot, own in steps.items()
        if expected[slot] < len(own) and slot not in over
    ]:
        (_, price), slot = min(offers, key=lambda offer: (offer[0][0], offer[1]))
        if price > left:
            over.add(slot)
            continue
        left -= price
        expected[slot] += 1
    assert taken == expected
    assert left >= 0
    assert all(step is None or step[1] > left for step in map(following, steps))
