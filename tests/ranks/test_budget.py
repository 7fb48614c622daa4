"""Spending a budget step by step, compared with a direct search for the best step."""

import random

import pytest
import torch

from lrcore.ranks.budget import take_known_steps, take_steps


@pytest.mark.parametrize("seed", range(60))
def test_steps_are_taken_by_smallest_key_until_none_fits(seed):
    draw = random.Random(seed)
    steps = {
        (i, name): [(draw.randint(-5, 0), draw.randint(1, 9)) for _ in range(draw.randint(0, 6))]
        for i in range(4)
        for name in "kv"
    }
    steps_taken, before = dict.fromkeys(steps, 0), draw.randint(0, 60)
    remaining = before

    def next_step(slot):
        return steps[slot][steps_taken[slot]] if steps_taken[slot] < len(steps[slot]) else None

    def advance(slot):
        steps_taken[slot] += 1

    take_steps(steps, remaining, next_step, advance)
    keys = {s: torch.tensor([float(key) for key, _ in steps[s]]) for s in sorted(steps)}
    prices = {s: torch.tensor([price for _, price in steps[s]]) for s in steps}
    assert take_known_steps(keys, prices, before) == steps_taken
    expected, over = dict.fromkeys(steps, 0), set()
    while offers := [
        (slot_steps[expected[slot]], slot)
        for slot, slot_steps in steps.items()
        if expected[slot] < len(slot_steps) and slot not in over
    ]:
        (_, price), slot = min(offers, key=lambda offer: (offer[0][0], offer[1]))
        if price > remaining:
            over.add(slot)
            continue
        remaining -= price
        expected[slot] += 1
    assert steps_taken == expected
    assert remaining >= 0
    assert all(step is None or step[1] > remaining for step in map(next_step, steps))
