from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hoplite._group.ledger import MAX_AHEAD, MAX_AHEAD_BYTES, Ledger


def test_what_all_have_begun_frees_what_came_before() -> None:
    ledger = Ledger()
    ledger.making(1, ["a"])
    made: list[str] = []
    ledger.making(2, made)
    made.append("b")
    ledger.making(3, ["c"])
    assert ledger.met(2) == ["a"]
    assert ledger.met(3) == ["b"]
    assert ledger.met(3) == []
    assert len(ledger) == 1


def test_many_or_large_collectives_make_them_meet() -> None:
    ledger = Ledger()
    for _ in range(MAX_AHEAD):
        assert not ledger.must_meet()
        ledger.passed(1)
    assert ledger.must_meet()
    ledger.met(MAX_AHEAD + 1)
    assert not ledger.must_meet()
    ledger.passed(MAX_AHEAD_BYTES)
    assert ledger.must_meet()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, MAX_AHEAD_BYTES)), max_size=200))
def test_little_is_ever_left(collectives: list[tuple[bool, int]]) -> None:
    ledger = Ledger()
    alive: set[str] = set()
    for sequence, (meets, nbytes) in enumerate(collectives, 1):
        if not meets and ledger.must_meet():
            alive -= set(ledger.met(sequence))
        ledger.making(sequence, [str(sequence)])
        alive.add(str(sequence))
        if meets:
            alive -= set(ledger.met(sequence))
        else:
            ledger.passed(nbytes)
        assert len(ledger) == len(alive) <= MAX_AHEAD + 2
