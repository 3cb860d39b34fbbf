"""Violations that are planted in a history are found."""

import unittest

from chaos.history import History, contents

SEED = 7
SIZE = 1000


class Reads(unittest.TestCase):
    def setUp(self) -> None:
        self.history = History(SEED, keys=2)
        self.key = self.history.keys[0]
        self.key.begun = 3
        self.key.deleted = 2
        self.key.present = 3

    def read(self, value: bytes, floor: int = 2) -> str:
        self.history.check_read(self.key, value, floor, "here")
        return " ".join(self.history.violations)

    def value(self, version: int) -> bytes:
        return contents(SEED, self.key.name, version, SIZE)

    def test_the_present_value_is_right(self) -> None:
        self.assertEqual(self.read(self.value(3)), "")

    def test_a_value_that_was_deleted_during_the_read_is_right(self) -> None:
        self.assertEqual(self.read(self.value(2), floor=1), "")

    def test_a_value_that_was_deleted_before_the_read_is_old(self) -> None:
        self.assertIn("old value", self.read(self.value(2)))

    def test_a_put_without_an_answer_may_take_effect_later(self) -> None:
        self.key.unanswered.add(2)
        self.assertEqual(self.read(self.value(2)), "")

    def test_a_flipped_bit_is_found(self) -> None:
        value = bytearray(self.value(3))
        value[-1] ^= 1
        self.assertIn("wrong bytes", self.read(bytes(value)))

    def test_a_value_that_is_too_short_is_found(self) -> None:
        self.assertIn("wrong bytes", self.read(self.value(3)[:-1]))
        self.assertIn("wrong bytes", self.read(b""))

    def test_a_value_of_another_key_is_found(self) -> None:
        self.assertIn("wrong bytes", self.read(contents(SEED, "k1", 3, SIZE)))

    def test_a_value_that_was_never_put_is_found(self) -> None:
        self.assertIn("from nowhere", self.read(self.value(4)))


if __name__ == "__main__":
    unittest.main()
