"""What is remembered is bounded by what it was made from."""

from grpo_reward.remembered import BASE_SIZE, LEAST_VALUES, MAX_SIZE, Remembered

MAX_ONE_SIZE = MAX_SIZE // LEAST_VALUES


def test_what_was_put_comes_back_also_when_it_is_none():
    remembered: Remembered[str, str | None] = Remembered()
    assert remembered.get("a") is None
    remembered.put("a", "x", 1)
    remembered.put("b", None, 1)
    assert (remembered.get("a"), remembered.get("b")) == (("x",), (None,))


def test_the_one_used_longest_ago_makes_room():
    remembered: Remembered[int, int] = Remembered()
    most = MAX_SIZE // (BASE_SIZE + 1)
    for number in range(most):
        remembered.put(number, number, 1)
    assert remembered.get(0) == (0,)
    remembered.put(most, most, 1)
    assert (remembered.get(0), remembered.get(1), remembered.get(most)) == ((0,), None, (most,))


def test_a_large_one_is_not_kept_and_drives_nothing_out():
    remembered: Remembered[str, int] = Remembered()
    remembered.put("small", 1, 1)
    remembered.put("largest", 2, MAX_ONE_SIZE)
    remembered.put("too large", 3, MAX_ONE_SIZE + 1)
    assert (remembered.get("small"), remembered.get("largest"), remembered.get("too large")) == ((1,), (2,), None)


def test_its_bound_can_be_another():
    remembered: Remembered[str, int] = Remembered(16 * BASE_SIZE)
    largest = 16 * BASE_SIZE // LEAST_VALUES
    remembered.put("first", 1, largest)
    remembered.put("too large", 2, largest + 1)
    assert (remembered.get("first"), remembered.get("too large")) == ((1,), None)
    for name in "abcdefgh":
        remembered.put(name, 3, BASE_SIZE)
    assert (remembered.get("first"), remembered.get("h")) == (None, (3,))
    remembered.clear()
    assert remembered.get("h") is None
