"""Input records of Linear Road: a simulation of cars on expressways, second by second, by the rules of LinearGenerator.

A record is 15 integers as CSV: `type,time,vid,speed,xway,lane,dir,seg,pos,qid,sinit,send,dow,tod,day`, -1 if unused.
Type 0 is a position report, 2 a query of an account balance, 3 a query of a daily expenditure. The road is empty at
the start and fills for about 40 minutes, so the number of records grows with the square of the simulated time:
100,000 records of one expressway are the first 7 minutes. Tolls need the tables of the minute before, so a list that is
replayed should cover several minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.errors import ConfigError
from treadle.workloads.linear_road.rules import EAST, EXIT_LANE

DAY = 10_800
"""Seconds of a simulated day."""
SEGMENT_FEET = 5_280
FEET_PER_SECOND = 5_280 / 3_600
"""One mile per hour."""
REPORT_EVERY = 30
"""Seconds between two position reports of a car."""
TO_THE_MIDDLE = 0.8
"""The share of the cars from the first third of the road that leave it in its middle third."""
SECOND_RECORD, BALANCES, EXPENDITURES, DAYS = 0.01, 0.5, 0.1, 68
"""How likely a second record is; the shares of types 2 and 3 among these, the rest is nothing; days asked for."""
RETURNS, AWAY = 0.1, (1_000, 1_999)
"""The share of the cars that enter again, and after how many seconds."""
ACCIDENT_AFTER = (300, 900)
"""Seconds until the next accident, and seconds until it is cleared: 10 minutes, 5 more or less."""
ACCIDENT_FEET = 1_000
"""Two cars that are at most so far apart may have an accident."""
CHANGES_LANE = 0.4
ENTRANCE_LANE, TRAVEL_LANES = 0, (1, 3)
START_SPEED, ENTRANCE_SPEED, TRAVEL_SPEED, EXIT_SPEED, TOP_SPEED = 10, 40, 70, 10, 100
SLOWER = ((72, 0), (87, 10), (2_160, 20), (math.inf, 50))
"""How much slower cars are, in mph, where at most so many of them are in a segment and direction."""

CAR = np.dtype(
    [
        ("vid", "i8"), ("xway", "i8"), ("dir", "i8"), ("lane", "i8"), ("entrance", "i8"), ("exit", "i8"),
        ("entered", "i8"), ("pos", "f8"), ("speed", "i8"), ("stopped", "?"),
    ]
)  # fmt: skip
Cars = NDArray[Any]
"""Structured arrays of `CAR`."""


@dataclass(frozen=True)
class Road:
    """An expressway: its segments, and the new cars per second by which its sine curve of arrivals is multiplied."""

    segments: int = 100
    arrivals: float = 20.0
    accident_after: tuple[int, int] = ACCIDENT_AFTER

    def __post_init__(self) -> None:
        if self.segments < 3 or not self.arrivals > 0:
            raise ConfigError(
                f"a road with {self.segments} segments and {self.arrivals:g} arrivals carries no traffic",
                remedy="give at least 3 segments and more than 0 arrivals",
            )


FULL = Road()
SMALL = Road(segments=10, arrivals=0.5, accident_after=(120, 240))
"""For tests: about 200 cars."""


def lines(count: int, *, seed: int = 0, expressways: int = 1, start: int = 1_800, road: Road = FULL) -> list[str]:
    """The first `count` records from the second `start` on, when all roads are empty.

    After the last second of a day, traffic begins again at `start` on empty roads.
    """
    if not 0 <= start < DAY or expressways < 1:
        raise ConfigError(
            f"there is no traffic on {expressways} expressways from second {start} on",
            remedy=f"give at least one expressway, and a start from 0 to {DAY - 1}",
        )
    random = np.random.default_rng(seed)
    found: list[str] = []
    traffic = Traffic(road, random, expressways, start)
    while len(found) < count:
        if traffic.time == DAY:
            traffic = Traffic(road, random, expressways, start)
        found += traffic.tick()
    return found[:count]


class Traffic:
    """The cars on all expressways at one second. `tick` reports and simulates one second."""

    def __init__(self, road: Road, random: np.random.Generator, expressways: int, start: int) -> None:
        self.time = start
        self.cars: Cars = np.empty(0, CAR)
        self._road = road
        self._random = random
        self._expressways = expressways
        self._vids = 0
        self._queries = 0
        self._away: dict[int, list[int]] = {}
        """Cars that will enter again, by the second in which they do."""
        self._turning_point = [start + self._between(road.accident_after) for _ in range(expressways)]
        """For each expressway the second of its next accident or, during an accident, of the accident's end."""

    def tick(self) -> list[str]:
        """Move the cars by one second, let new ones enter, and return the records of this second."""
        self._drive()
        for xway in range(self._expressways):
            if self.time >= self._turning_point[xway]:
                self._clear_or_crash(xway)
        self.cars = np.concatenate([self.cars, self._entering()])
        reporting = (self.time - self.cars["entered"]) % REPORT_EVERY == 0
        records = self._records(self.cars[reporting])
        gone = reporting & (self.cars["lane"] == EXIT_LANE)
        if gone.any():
            self._leave(self.cars["vid"][gone])
            self.cars = self.cars[~gone]
        self.time += 1
        return records

    def segments(self) -> NDArray[np.int64]:
        """The segment of each car."""
        found: NDArray[np.int64] = self.cars["pos"].astype(np.int64) // SEGMENT_FEET
        return found

    def _entering(self) -> Cars:
        """The cars that enter in this second, with their routes."""
        again = self._away.pop(self.time, [])
        new = self._new_cars()
        count = new + len(again)
        cars: Cars = np.zeros(count, CAR)
        cars["vid"] = [*again, *range(self._vids, self._vids + new)]
        self._vids += new
        cars["xway"] = self._random.integers(self._expressways, size=count)
        cars["dir"] = self._random.integers(2, size=count)
        cars["entrance"], cars["exit"] = self._routes(cars["dir"] == EAST)
        cars["lane"], cars["speed"], cars["entered"] = ENTRANCE_LANE, START_SPEED, self.time
        first = cars["entrance"] * SEGMENT_FEET
        cars["pos"] = np.where(cars["dir"] == EAST, first, first + SEGMENT_FEET - 1)
        return cars

    def _new_cars(self) -> int:
        """Count up from 0 while the number is below a threshold that is drawn anew at each step."""
        scale = self._road.arrivals * self._expressways
        lowest = math.sin(math.pi * self.time / DAY) + 0.8
        drawn = lowest + self._random.random(math.ceil(scale * (lowest + 1.0)) + 1)
        return int(np.argmax(np.arange(len(drawn)) >= scale * drawn))

    def _routes(self, east: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Entrance and exit segments: exits are at least two segments on, and most often in the middle third."""
        segments, count = self._road.segments, len(east)
        travelled = self._random.integers(segments - 2, size=count)
        end = self._random.integers(travelled + 2, segments)
        entrance = np.where(east, travelled, segments - 1 - travelled)
        away = np.where(east, end, segments - 1 - end)
        third = segments // 3
        before_the_middle = np.where(east, entrance < third, entrance >= 2 * third)
        to_the_middle = before_the_middle & (self._random.random(count) < TO_THE_MIDDLE)
        return entrance, np.where(to_the_middle, self._random.integers(third, 2 * third, size=count), away)

    def _drive(self) -> None:
        """Change speeds and lanes, then move all cars by the mean of their old and new speed."""
        cars = self.cars
        if not len(cars):
            return
        lane, before = cars["lane"], cars["speed"].copy()
        entering, leaving = lane == ENTRANCE_LANE, lane == EXIT_LANE
        changing = ~entering & ~leaving & (self._random.random(len(cars)) < CHANGES_LANE)
        most = np.where(entering, ENTRANCE_SPEED + self._around(5), TRAVEL_SPEED + self._around(10)) - self._slower()
        gained = self._random.integers(0, np.where(entering, 10, 5))
        speed = np.where(changing, before + self._around(5), np.minimum(before + gained, most))
        speed[leaving] = EXIT_SPEED
        cars["speed"] = np.where(cars["stopped"], 0, speed.clip(0, TOP_SPEED))
        free = ~cars["stopped"]
        low, high = TRAVEL_LANES
        drawn = self._random.integers(low, high + 1, size=len(cars))
        lane[changing & free] = drawn[changing & free]
        feet = np.where(free, (cars["speed"] + before) / 2 * FEET_PER_SECOND, 0.0)
        moved = cars["pos"] + np.where(cars["dir"] == EAST, feet, -feet)
        cars["pos"] = moved.clip(0, self._road.segments * SEGMENT_FEET - 1)
        self._change_lanes_by_place()

    def _change_lanes_by_place(self) -> None:
        """Cars one segment past their entrance begin to travel; cars in their exit segment take the exit lane."""
        cars, segment = self.cars, self.segments()
        onward = np.where(cars["dir"] == EAST, 1, -1)
        cars["lane"][(cars["lane"] == ENTRANCE_LANE) & (segment != cars["entrance"])] = TRAVEL_LANES[0]
        arrived = ((segment - cars["exit"]) * onward >= 0) & ~cars["stopped"]
        cars["lane"][arrived] = EXIT_LANE
        cars["speed"][arrived] = EXIT_SPEED

    def _slower(self) -> NDArray[np.int64]:
        """How much slower each car is because of the cars in its segment."""
        place = (self.cars["xway"] * 2 + self.cars["dir"]) * self._road.segments + self.segments()
        crowd = np.bincount(place)[place]
        found: NDArray[np.int64] = np.select([crowd <= most for most, _ in SLOWER], [less for _, less in SLOWER])
        return found

    def _around(self, width: int) -> NDArray[np.int64]:
        """For each car a whole number between -width and width, both excluded."""
        return self._random.integers(1 - width, width, size=len(self.cars))

    def _between(self, bounds: tuple[int, int]) -> int:
        return int(self._random.integers(bounds[0], bounds[1] + 1))

    def _clear_or_crash(self, xway: int) -> None:
        """End the accident on an expressway or, if there is none, let two cars that are close have one."""
        cars = self.cars
        involved = cars["stopped"] & (cars["xway"] == xway)
        if involved.any():
            cars["stopped"][involved] = False
        else:
            pair = self._close_pair(xway)
            if pair is None:
                return  # tried again in the next second
            ahead = pair[np.argmax(np.where(cars["dir"][pair] == EAST, 1, -1) * cars["pos"][pair])]
            for name in ("pos", "lane"):
                cars[name][pair] = cars[name][ahead]
            cars["stopped"][pair], cars["speed"][pair] = True, 0
        self._turning_point[xway] = self.time + self._between(self._road.accident_after)

    def _close_pair(self, xway: int) -> NDArray[np.int64] | None:
        """Two cars of one direction in travel lanes that are close to each other, if there are any."""
        cars, (low, high) = self.cars, TRAVEL_LANES
        there = np.flatnonzero((cars["xway"] == xway) & (cars["lane"] >= low) & (cars["lane"] <= high))
        ordered = there[np.lexsort((cars["pos"][there], cars["dir"][there]))]
        near = np.diff(cars["pos"][ordered]) <= ACCIDENT_FEET
        pairs = np.flatnonzero(near & (np.diff(cars["dir"][ordered]) == 0))
        if not len(pairs):
            return None
        first = int(self._random.choice(pairs))
        found: NDArray[np.int64] = ordered[first : first + 2]
        return found

    def _records(self, cars: Cars) -> list[str]:
        """The position reports of some cars, each followed by the query that it may make."""
        names = ("vid", "speed", "xway", "lane", "dir")
        places = cars["pos"].astype(np.int64)
        columns = [cars[name].tolist() for name in names]
        columns += [(places // SEGMENT_FEET).tolist(), places.tolist()]
        asks = (self._random.random(len(cars)) < SECOND_RECORD).tolist()
        found = []
        for (vid, speed, xway, *rest), query in zip(zip(*columns, strict=True), asks, strict=True):
            place = ",".join(map(str, rest))
            found.append(f"0,{self.time},{vid},{speed},{xway},{place},-1,-1,-1,-1,-1,-1")
            if query:
                found += self._query(vid, xway)
        return found

    def _query(self, vid: int, xway: int) -> list[str]:
        """One of the queries of types 2 and 3, or nothing."""
        drawn = self._random.random()
        if drawn >= BALANCES + EXPENDITURES:
            return []
        self._queries += 1
        if drawn < BALANCES:
            return [f"2,{self.time},{vid},-1,-1,-1,-1,-1,-1,{self._queries},-1,-1,-1,-1,-1"]
        day = self._random.integers(1, DAYS + 1)
        return [f"3,{self.time},{vid},-1,{xway},-1,-1,-1,-1,{self._queries},-1,-1,-1,-1,{day}"]

    def _leave(self, vids: NDArray[np.int64]) -> None:
        """Some of the cars that leave enter again later."""
        for vid in vids[self._random.random(len(vids)) < RETURNS].tolist():
            self._away.setdefault(self.time + self._between(AWAY), []).append(vid)
