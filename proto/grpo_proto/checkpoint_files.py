"""Read what a checkpoint in safetensors says of itself: names, dtypes and shapes of its tensors, and a digest of all.

The format: 8 bytes with the header's length, the header in JSON, the tensors (https://github.com/huggingface/safetensors).
"""

import hashlib
import json
import mmap
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
NUM_HASHING_THREADS = 4
SAMPLED_BYTES = 4096
"""Of each tensor, in `checkpoint_sample`."""


class TensorHeader(NamedTuple):
    """One tensor of a checkpoint. `dtype` in the format's own words, as BF16; `start` and `end` are bytes of `file`."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


def checkpoint_folder(name_or_path: str, *, revision: str | None = None, cache_folder: str | None = None) -> Path:
    """Return the folder of a checkpoint that is on this machine: a path, or a Hub name that has been downloaded.

    `cache_folder`: where it was downloaded to, if not to the usual place.
    Raises FileNotFoundError when it is not here.
    """
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["*.safetensors", "*.safetensors.index.json", "config.json"]
        return Path(
            snapshot_download(
                name_or_path, revision=revision, cache_dir=cache_folder, local_files_only=True, allow_patterns=patterns
            )
        )
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise FileNotFoundError(f"no checkpoint {name_or_path} on this machine") from error


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Return the header of every tensor in the folder's safetensors files, sorted by name.

    Raises FileNotFoundError when there is no such file, ValueError when one is not in the format.
    """
    found: dict[str, TensorHeader] = {}
    for file in _files(folder):
        found |= _read_header(file)
    return dict(sorted(found.items()))


def checkpoint_digest(folder: Path) -> str:
    """Return a SHA-256 of all tensors: their names, dtypes, shapes and bytes, however they are spread over files.

    It reads every byte, one to two gigabytes a second. Raises what `read_headers` raises.
    """
    headers = read_headers(folder)
    maps: dict[Path, mmap.mmap] = {}
    try:
        for path in {header.file for header in headers.values()}:
            with path.open("rb") as opened:
                maps[path] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)

        def digest_of(header: TensorHeader) -> str:
            with memoryview(maps[header.file]) as whole, whole[header.start : header.end] as part:
                return hashlib.sha256(part).hexdigest()

        with ThreadPoolExecutor(NUM_HASHING_THREADS) as pool:
            digests = list(pool.map(digest_of, headers.values()))
    finally:
        for opened_map in maps.values():
            opened_map.close()
    every = [
        (name, header.dtype, header.shape, digest)
        for (name, header), digest in zip(headers.items(), digests, strict=True)
    ]
    return hashlib.sha256(json.dumps(every).encode()).hexdigest()


def checkpoint_sample(folder: Path) -> str:
    """Return a SHA-256 of the names, dtypes and shapes of all tensors and of bytes from the middle of each.

    It tells another training of a model apart without reading the model. Raises what `read_headers` raises.
    """
    digest = hashlib.sha256()
    for name, header in read_headers(folder).items():
        with header.file.open("rb") as opened:
            opened.seek(header.start + max(0, header.end - header.start - SAMPLED_BYTES) // 2)
            sample = opened.read(min(SAMPLED_BYTES, header.end - header.start))
        digest.update(json.dumps([name, header.dtype, header.shape, sample.hex()]).encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        yield from sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    elif (folder / "model.safetensors").is_file():
        yield folder / "model.safetensors"
    else:
        raise FileNotFoundError(f"{folder} has no model.safetensors, nor an index of several")


def _read_header(file: Path) -> Iterator[tuple[str, TensorHeader]]:
    with file.open("rb") as opened:
        try:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length} bytes")
            entries = json.loads(opened.read(length))
        except (struct.error, ValueError) as error:
            raise ValueError(f"{file} is not a safetensors file: {error}") from error
    for name, entry in entries.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            yield name, TensorHeader(entry["dtype"], tuple(entry["shape"]), file, 8 + length + start, 8 + length + end)
