"""Make a small data set: pictures of one colour with noise, and the first letter of the colour as the answer.

    python examples/colours/make_data.py runs/colours/data

The question is the same in every row, so only who looks at the picture can do better than one in three.
"""

import argparse
import json
import random
from pathlib import Path

from PIL import Image

COLOURS = {"r": (200, 40, 40), "g": (40, 200, 40), "b": (40, 40, 200)}
QUESTION = "Which colour?"
SIDE, NOISE = 32, 40


def picture(colour: str, rng: random.Random) -> Image.Image:
    pixels = bytes(
        min(max(value + rng.randint(-NOISE, NOISE), 0), 255) for _ in range(SIDE * SIDE) for value in COLOURS[colour]
    )
    return Image.frombytes("RGB", (SIDE, SIDE), pixels)


def write(folder: Path, name: str, count: int, rng: random.Random) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as rows:
        for number in range(count):
            colour = rng.choice(list(COLOURS))
            path = f"{name}/{number}.png"
            picture(colour, rng).save(folder / path)
            prompt = [{"role": "user", "content": QUESTION}]
            rows.write(json.dumps({"prompt": prompt, "image": path, "solution": colour}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rng = random.Random(0)
    write(folder, "train", 256, rng)
    write(folder, "held_out", 64, rng)
    print(f"256 rows to train on and 64 held out: {folder}")


if __name__ == "__main__":
    main()
