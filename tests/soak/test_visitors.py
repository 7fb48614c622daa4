"""Many users of one page: sliders, jobs, answers, reloads, and users who leave before the answer
arrives. No answer may be an error, and the server may not grow.
"""

import json
import os
import random
import statistics
import threading
import time
from dataclasses import dataclass, field

import pytest
from page_server import Server
from visitor import Refused, Visitor

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
SHARE = float(os.environ.get("LRCORE_SOAK_SHARE", "1"))
PEOPLE, SECONDS = 30, 3600
WARM = 900  # seconds until the caches are full
GROWTH = 1.05  # of the memory after that time
REST = 0.2  # seconds, see assets/change-listener.js
SIGHTS = ("network-sight", "policies-sight", "ranking-sight")  # sections below the plan
SLIDER = "field-ratio input"
FULL = "jobs are waiting"  # on a busy machine, jobs may arrive faster than they end
LOOK = 300  # samples of the memory, one per second


@dataclass
class Person:
    """User of the page until `end`, with the errors, and the number of jobs refused because too
    many were queued.
    """

    url: str
    number: int
    end: float
    took: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    full: int = 0
    page: Visitor | None = None

    def live(self) -> None:
        self.chance = random.Random(SEED + self.number)
        self.opens_plan()
        acts = (
            self.slides,
            self.chooses,
            self.scrolls,
            self.answers,
            self.starts,
            self.reloads,
            self.leaves,
        )
        while time.monotonic() < self.end:
            act = self.chance.choices(acts, (12, 3, 2, 1, 1, 2, 2))[0]
            try:
                act()
                self.page.rests()
                self.page.beat()
            except Refused as refused:
                if FULL in str(refused):
                    self.full += 1
                else:
                    self.wrong.append(f"{act.__name__}: {refused}")
            except Exception as error:
                self.wrong.append(f"{act.__name__}: {type(error).__name__}: {error}")
                self.opens_plan()
            time.sleep(self.chance.uniform(1, 10))

    def opens_plan(self) -> None:
        """Open the plan and its budget curve."""
        if self.page is not None:
            self.page.close()
        self.page = Visitor(self.url, self.took)
        self.page.looks("curve-sight")

    def slides(self) -> None:
        for _ in range(self.chance.randint(2, 8)):
            self.page.does("field-ratio", "input", self.chance.randint(1, 60) / 100)
            pause = self.chance.uniform(0.1, 0.5)
            time.sleep(pause)
            if pause > REST:
                self.page.rests()
        self.page.does("field-ratio", "release")

    def chooses(self) -> None:
        name, values = self.chance.choice(
            [
                ("field-policy", ("uniform", "softmax", "energy", "greedy")),
                ("field-method", ("a3", "svd", "svd_llm")),
                ("field-rounding", ("down", "nearest")),
            ]
        )
        self.page.does(name, "input", self.chance.choice(values))

    def scrolls(self) -> None:
        """Scroll to the policies, and perhaps away from them."""
        for sight in SIGHTS:
            self.page.looks(sight)
        time.sleep(self.chance.uniform(1, 5))
        if self.chance.random() < 0.7:
            for sight in SIGHTS:
                self.page.leaves_sight(sight)

    def answers(self) -> None:
        self.page.does("prompt", "input", "Once upon a time")
        self.page.does("generate", "click")

    def starts(self) -> None:
        self.page.does("run-name", "input", f"run of {self.number}")
        self.page.does("start", "click")

    def reloads(self) -> None:
        self.page.open()
        self.page.looks("curve-sight")

    def leaves(self) -> None:
        self.page.leave("field-ratio", "input")
        self.opens_plan()


@pytest.mark.soak
def test_thirty_users_of_a_page(tmp_path):
    # threads wait as in a server outside the tests, see conftest.py
    server = Server(tmp_path, tmp_path / "cache", GOMP_SPINCOUNT="5000")
    try:
        end = time.monotonic() + SECONDS * SHARE
        people = [Person(server.url, number, end) for number in range(PEOPLE)]
        threads = [threading.Thread(target=person.live) for person in people]
        for thread in threads:
            thread.start()
        memory = [server.memory]
        while time.monotonic() < end:
            time.sleep(1)
            memory.append(server.memory)
        for thread in threads:
            thread.join()
        parts = memory[WARM:][:LOOK] or memory[-LOOK:], memory[-LOOK:]
        warm, last = (held(part) for part in parts)
        of_memory = {
            "jobs not taken": [sum(person.full for person in people)],
            "held": [warm, last],
            "median": [statistics.median(part) for part in parts],
            "most": [max(part) for part in parts],
            "least by minute": least_by_minute(memory),
        }
        print(json.dumps(account(people) | of_memory))
        assert [wrong for person in people for wrong in person.wrong] == []
        assert "Traceback" not in server.log
        assert "ERROR" not in server.log
        assert last <= GROWTH * warm
    finally:
        server.stop()


def held(memory: list[int]) -> float:
    """Return the memory of the server between jobs, which need more temporarily."""
    return statistics.median(least_by_minute(memory))


def least_by_minute(memory: list[int]) -> list[int]:
    return [min(memory[i : i + 60]) for i in range(0, len(memory), 60)]


def account(people: list[Person]) -> dict[str, list[float]]:
    """Return count, median, 95 % quantile and maximum of the seconds by event, and the 95 %
    quantile of the slider for the slowest user.
    """
    names = sorted({name for person in people for name in person.took})
    times = {name: [t for person in people for t in person.took.get(name, [])] for name in names}
    slowest = [at95(person.took[SLIDER]) for person in people if SLIDER in person.took]
    rows = {
        name: [len(all_of), statistics.median(all_of), at95(all_of), max(all_of)]
        for name, all_of in times.items()
    }
    return rows | {"slowest person's slider": [max(slowest)]}


def at95(times: list[float]) -> float:
    return sorted(times)[int(0.95 * len(times))]
