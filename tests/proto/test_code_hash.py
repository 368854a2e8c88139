import hashlib
from pathlib import Path

import pytest

from grpo_proto.code_hash import _imported, code_hash

pytestmark = pytest.mark.usefixtures("forget_imports")


@pytest.fixture
def forget_imports():
    """What a file imports is remembered for the life of a process, in which files do not change."""
    _imported.cache_clear()
    yield
    _imported.cache_clear()


def test_a_file_alone_has_the_digest_that_sha256sum_prints(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import json\nfrom pathlib import Path\n")
    assert code_hash(file) == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "statement",
    [
        "from .helper import words",
        "from . import helper",
        "def late():\n    from .helper import words",
        "from .between import words",
        "from .folder import words",
        "from .folder.deep import words",
        "import helper",
        "from helper import words",
        "import folder.deep as deep",
        "from folder import deep",
    ],
)
def test_a_change_in_what_it_imports_is_a_change(tmp_path: Path, statement: str):
    file = tmp_path / "mine.py"
    file.write_text(statement + "\n")
    (tmp_path / "folder").mkdir()
    for name in ("helper.py", "folder/__init__.py", "folder/deep.py"):
        (tmp_path / name).write_text("words = 1\n")
    (tmp_path / "between.py").write_text("from .helper import words\nfrom .mine import nothing\n")
    (tmp_path / "stranger.py").write_text("")
    before = code_hash(file)
    (tmp_path / "stranger.py").write_text("words = 2\n")
    assert code_hash(file) == before
    for name in ("helper.py", "folder/__init__.py", "folder/deep.py"):
        (tmp_path / name).write_text("words = 2\n")
    assert code_hash(file) != before


def test_a_plain_import_inside_a_package_is_a_librarys(tmp_path: Path):
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "json.py").write_text("")
    file = tmp_path / "mine.py"
    file.write_text("import json\n")
    assert code_hash(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_built_in_reward_depends_on_its_helpers():
    rewards = Path(__file__).parents[2] / "services/reward/grpo_reward/rewards"
    file = rewards / "exact_match.py"
    assert code_hash(file) != hashlib.sha256(file.read_bytes()).hexdigest()
    assert {path.name for path in _imported(file)} == {"place.py", "author.py", "gold_text.py", "normal_form.py"}
