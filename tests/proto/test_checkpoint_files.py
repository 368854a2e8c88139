"""What a checkpoint says of itself, whatever files it is spread over."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from grpo_proto.checkpoint_files import checkpoint_digest, checkpoint_folder, checkpoint_sample, read_headers

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0), "c": torch.ones(3, dtype=torch.bfloat16)}


def in_one_file(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def in_two_files(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    weight_map = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_headers_and_digest_do_not_depend_on_the_files(tmp_path: Path):
    one, two = in_one_file(tmp_path / "one", TENSORS), in_two_files(tmp_path / "two", TENSORS)
    shapes = {name: (header.dtype, header.shape) for name, header in read_headers(two).items()}
    assert shapes == {"a": ("F32", (2, 3)), "b": ("F32", (0,)), "c": ("BF16", (3,))}
    assert checkpoint_digest(one) == checkpoint_digest(two)
    assert checkpoint_sample(one) == checkpoint_sample(two)


@pytest.mark.parametrize(
    "change", [{"a": torch.arange(6.0).reshape(3, 2)}, {"a": torch.ones(2, 3)}, {"d": torch.ones(1)}]
)
def test_another_shape_value_or_name_is_another_digest(tmp_path: Path, change: dict[str, torch.Tensor]):
    one, other = in_one_file(tmp_path / "one", TENSORS), in_one_file(tmp_path / "other", TENSORS | change)
    assert checkpoint_digest(one) != checkpoint_digest(other)
    assert checkpoint_sample(one) != checkpoint_sample(other)


def test_a_sample_reads_the_middle_of_a_large_tensor(tmp_path: Path):
    large = torch.zeros(10_000)
    one = in_one_file(tmp_path / "one", {"a": large})
    for place, same in ((0, True), (5_000, False)):
        changed = large.clone()
        changed[place] = 1
        other = in_one_file(tmp_path / f"changed-{place}", {"a": changed})
        assert (checkpoint_sample(one) == checkpoint_sample(other)) == same


def test_what_is_no_checkpoint_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no checkpoint nobody/nothing on this machine"):
        checkpoint_folder("nobody/nothing")
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors"):
        read_headers(checkpoint_folder(str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        read_headers(tmp_path)
