"""What is remembered is bounded by what it was made from."""

from grpo_reward.remembered import BASE_SIZE, MAX_ONE_SIZE, MAX_SIZE, Remembered


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
