"""The layering: who may import whom, and which files may import the heavy libraries."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "grpo_proto": ROOT / "proto/grpo_proto",
    "grpo_rollout": ROOT / "services/rollout/grpo_rollout",
    "grpo_reward": ROOT / "services/reward/grpo_reward",
    "grpo_trainer": ROOT / "services/trainer/grpo_trainer",
}
# The files in which a heavy library may be imported, as paths inside the package; "" is all of it.
HEAVY = {
    "deepspeed": {"grpo_trainer": ["engine/deepspeed_import.py", "engine/deepspeed_files.py"]},
    "peft": {"grpo_trainer": ["lora/adapter.py", "lora/merging.py"]},
    "vllm": {"grpo_rollout": [""]},
    "ray": {"grpo_reward": ["executors/ray.py", "executors/ray_cluster.py", "executors/ray_node.py"]},
    "trl": {"grpo_trainer": ["cold_start/command.py"]},
}
MAX_LINES = 400


def source_files() -> list[Path]:
    return sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


# What each folder of the trainer may import, besides itself and the files of GROUND. `run → loop → {episodes → sampling
# → fleet, journal → observe, checkpoint, engine} → {algorithm, ranks} → data → config`; the top puts them together.
BELOW_PARTS = {"algorithm", "ranks", "data", "config"}
ARROWS = {
    "episodes": BELOW_PARTS | {"sampling", "fleet"},
    "sampling": BELOW_PARTS | {"fleet"},
    "fleet": BELOW_PARTS,
    "engine": BELOW_PARTS | {"lora"},
    "checkpoint": BELOW_PARTS,
    "observe": BELOW_PARTS,
    "cold_start": BELOW_PARTS | {"lora"},
    "imports": {"data", "config"},
    "lora": {"config"},
    "algorithm": {"data", "config"},
    "ranks": {"data", "config"},
    "data": {"config"},
    "config": set[str](),
}
GROUND = {
    "errors",
    "atomic_file",
    "kept_identity",
    "model_class",
    "model_files",
    "group_trace",
    "extension",
    "parameters",
}


def trainer_imports(path: Path) -> set[str]:
    """The folders, and the files at the top, that a file of the trainer imports from."""
    inside = path.relative_to(PACKAGES["grpo_trainer"]).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            target = [*inside[: len(inside) - node.level], *(node.module or "").split(".")]
            found.add(target[0])
    return found - {""}


@pytest.mark.parametrize("folder", ARROWS)
def test_a_folder_of_the_trainer_imports_only_from_those_below_it(folder: str):
    for path in (PACKAGES["grpo_trainer"] / folder).rglob("*.py"):
        assert trainer_imports(path) <= {folder, *ARROWS[folder], *GROUND}, path


def test_every_folder_of_the_trainer_has_its_arrows():
    assert {path.parent.name for path in PACKAGES["grpo_trainer"].glob("*/__init__.py")} == set(ARROWS)
    for name in GROUND:
        assert trainer_imports(PACKAGES["grpo_trainer"] / f"{name}.py") <= GROUND


@pytest.mark.parametrize(
    ("package", "name"),
    [("grpo_rollout", ""), *(("grpo_proto", name) for name in ("", "messages", "client", "server"))]
    + [("grpo_trainer", name) for name in ("", *ARROWS)],
)
def test_the_map_of_a_folder_names_every_file(package: str, name: str):
    folder = PACKAGES[package] / name
    map_of_folder = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    sinks = {name for name in files if name.endswith("_sink.py") and "*_sink.py" in map_of_folder}
    assert not [name for name in sorted(files - sinks) if name not in map_of_folder]


def owner(path: Path) -> tuple[str, str]:
    package, folder = next((name, folder) for name, folder in PACKAGES.items() if path.is_relative_to(folder))
    return package, path.relative_to(folder).as_posix()


def test_there_are_sources_to_check():
    assert {owner(path)[0] for path in source_files()} == set(PACKAGES)


def libraries(path: Path) -> set[str]:
    """The packages that a file imports from."""
    return {module.split(".")[0] for module in imported_modules(path)}


def test_a_service_never_imports_another_service():
    for path in source_files():
        assert libraries(path) & PACKAGES.keys() <= {owner(path)[0], "grpo_proto"}, path


def test_heavy_libraries_stay_in_the_files_named_for_them():
    for path in source_files():
        package, name = owner(path)
        for library in libraries(path) & HEAVY.keys():
            places = HEAVY[library].get(package, [])
            assert {"", name} & set(places), f"{library} is imported in {path}; only these may: {HEAVY[library]}"


def test_torch_is_imported_only_where_weights_are():
    names = ("transport.py", "staging.py", "gloo_connections.py", "checkpoint_layout.py")
    weights = {("grpo_proto", name) for name in names}
    alone = weights | {("grpo_reward", "rewards/reward_model.py")}
    found = {owner(path) for path in source_files() if "torch" in libraries(path)}
    assert {file for file in found if file[0] not in ("grpo_rollout", "grpo_trainer")} == alone


def test_groups_of_exceptions_are_caught_as_what_they_are():
    # What is raised inside `except*` comes out in a group of its own with Python 3.11.2, Debian 12's.
    for path in source_files():
        assert not any(isinstance(node, ast.TryStar) for node in ast.walk(ast.parse(path.read_text()))), path


def test_a_file_can_be_read_in_one_sitting():
    for path in source_files():
        assert len(path.read_text().splitlines()) <= MAX_LINES, path
        assert path.name not in ("utils.py", "helpers.py", "common.py", "types.py"), path
