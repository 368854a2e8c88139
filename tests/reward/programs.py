"""Programs as a policy writes them, for tests of the reward `code`."""

ADD = "def add(a, b):\n    return a + b\n"
ZERO = "def add(a, b):\n    return 0\n"


def fenced(source: str, language: str = "python") -> str:
    return f"```{language}\n{source}```\n"
