"""Rows with images: where a dataset has them, where they stand in the prompt, and what is refused before the run."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, Features, Image, Sequence, Value
from tests.tiny_model import make_tokenizer
from tests.tiny_vision_model import IMAGE, make_vision_tokenizer
from tests.trainer.made_vision import picture

from grpo_proto.images import decode_image
from grpo_trainer.config.data import DataConfig
from grpo_trainer.data.episode_rows import RowsOfEpisodes
from grpo_trainer.data.repeats import repeats
from grpo_trainer.data.row_store import RowStore
from grpo_trainer.data.rows import load_prompt_rows
from grpo_trainer.data.sent_images import ImagesOfPrompts
from grpo_trainer.errors import RunError, UsageError
from grpo_trainer.observe.report_samples import prompt_text

TOKENIZER = make_vision_tokenizer()
TOKEN_ID = TOKENIZER.convert_tokens_to_ids(IMAGE)
RED, BLUE = picture(1), picture(2)
PLACE = {"type": "image"}
Load = Callable[..., RowStore]


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def text(of: str) -> dict[str, str]:
    return {"type": "text", "text": of}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "red.png").write_bytes(base64.b64decode(RED))

    def loaded(*rows: dict[str, Any], **settings: Any) -> RowStore:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_prompt_rows(DataConfig(dataset=str(path), **settings), TOKENIZER, image_token_id=TOKEN_ID)

    return loaded


@pytest.mark.parametrize(
    ("row", "content", "images"),
    [
        ({"prompt": user("How many?"), "images": ["pictures/red.png"]}, [PLACE, text("How many?")], [RED]),
        ({"prompt": user("How many?"), "image": BLUE}, [PLACE, text("How many?")], [BLUE]),
        ({"prompt": user("How many?"), "image": f"data:image/png;base64,{BLUE}"}, [PLACE, text("How many?")], [BLUE]),
        ({"prompt": user("How many?"), "images": [{"bytes": RED, "path": None}]}, [PLACE, text("How many?")], [RED]),
        (
            {"prompt": user("Is <image> like <image>?"), "images": ["pictures/red.png", BLUE]},
            [text("Is "), PLACE, text(" like "), PLACE, text("?")],
            [RED, BLUE],
        ),
        ({"prompt": user([text("How many?"), PLACE]), "images": [BLUE]}, [text("How many?"), PLACE], [BLUE]),
        ({"prompt": user([{**PLACE, "image": "pictures/red.png"}, text("?")])}, [PLACE, text("?")], [RED]),
        (
            {"prompt": user([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BLUE}"}}])},
            [PLACE],
            [BLUE],
        ),
        ({"prompt": user("None of them."), "images": []}, "None of them.", []),
    ],
    ids=["a path", "base64", "a data URL", "the Hub's", "tags", "parts", "in a part", "OpenAI's part", "none"],
)
def test_an_image_stands_where_the_row_says(load: Load, row: dict[str, Any], content: Any, images: list[str]):
    [found] = load({**row, "solution": "3"})
    assert found.prompt == user(content)
    assert ImagesOfPrompts(TOKEN_ID).encoded(found) == images
    assert found.token_ids.count(TOKEN_ID) == len(images)
    paths = {"images"} if row.get("images") == ["pictures/red.png"] else set()
    assert set(found.columns) == {"prompt", "solution", *paths}, "a reward is sent no pictures"
    assert RED not in json.dumps(found.columns)


def test_a_template_makes_a_message_with_the_images_of_a_column_of_any_name(load: Load, tmp_path: Path):
    [row] = load(
        {"question": "How many?", "picture": "red.png"},
        prompt_template="{question} Answer in one word.",
        image_column="picture",
        image_folder=str(tmp_path / "pictures"),
    )
    assert row.prompt == user([PLACE, text("How many? Answer in one word.")])


def test_equal_questions_about_two_pictures_are_two_prompts(load: Load):
    rows = load(*({"prompt": user("How many?"), "images": [one]} for one in (RED, BLUE)), prompt_column="prompt")
    assert list(repeats({"": rows}, {})) == []
    twice = load(*({"prompt": user("How many?"), "images": [RED]} for _ in range(2)))
    assert "1 of 2 rows (2) is equal to an earlier row" in "".join(repeats({"": twice}, {}))


def test_a_dataset_of_the_hubs_library_gives_the_files_of_its_pictures(tmp_path: Path):
    both = [{"bytes": base64.b64decode(one), "path": None} for one in (RED, BLUE)]
    features = Features({"prompt": Value("string"), "image": Image(), "images": Sequence(Image())})
    saved = Dataset.from_list([{"prompt": "How many?", "image": both[0], "images": both}], features)
    saved.save_to_disk(str(tmp_path / "saved"))
    for column, images in ({"image": [RED], "images": [RED, BLUE]}).items():
        config = DataConfig(dataset=str(tmp_path / "saved"), prompt_template="{prompt}", image_column=column)
        [row] = load_prompt_rows(config, TOKENIZER, image_token_id=TOKEN_ID)
        assert list(row.images) == images


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"prompt": user("?"), "images": ["pictures/blue.png"]},
            "the image pictures/blue.png, which is no file",
        ),
        ({"prompt": user("?"), "images": ["https://a.b/c.png"]}, "download it"),
        ({"prompt": user("?"), "images": [base64.b64encode(b"no picture" * 20).decode()]}, "cannot be used"),
        ({"prompt": user("?"), "images": [7]}, "an image of type int"),
        (
            {"prompt": user("?"), "images": ["rows.jsonl"]},
            "the image rows.jsonl, which cannot be used: the file is none",
        ),
        ({"prompt": user("?"), "images": ["~nobody/a.png"]}, "is no file"),
        ({"prompt": user("?"), "images": [RED], "image": BLUE}, "images in two columns, images, image"),
        ({"prompt": user("?"), "images": [RED] * 17}, "has 17 images; a prompt may have 16"),
        ({"prompt": user("<image>"), "images": [RED, BLUE]}, "2 images, and its messages have places for 1 <image>"),
        ({"prompt": user([PLACE]), "images": [RED, BLUE]}, "places for 1"),
        ({"prompt": user([PLACE, PLACE]), "images": [RED]}, "places for more"),
        ({"prompt": "How many?", "images": [RED]}, "give the prompt as messages"),
        ({"prompt": [{"role": "system", "content": "?"}], "images": [RED]}, "no message of the user"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_the_run(load: Load, row: dict[str, Any], told: str):
    with pytest.raises(UsageError, match="row 1") as refused:
        load(row)
    assert told in str(refused.value)


def test_of_two_usual_columns_the_filled_one_counts(load: Load):
    rows = load(
        {"prompt": user("?"), "images": [], "image": RED}, {"prompt": user("?"), "images": [BLUE], "image": None}
    )
    assert [row.images for row in rows] == [(RED,), (BLUE,)]


def test_a_named_column_that_no_row_has_is_refused(load: Load):
    with pytest.raises(UsageError, match=r"no column picture, which data\.image_column names"):
        load({"prompt": user("?"), "images": [RED]}, image_column="picture")


def test_the_first_row_with_images_is_known(load: Load):
    texts = [{"prompt": user(f"{number}?")} for number in range(300)]
    assert load(*texts, {"prompt": user("?"), "images": [RED]}).summary.first_with_images == 300
    assert load(*texts).summary.first_with_images is None


def test_a_model_that_sees_no_images_leaves_their_column_alone_and_refuses_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "How many?", "images": ["pictures/none.png"]}))
    [row] = load_prompt_rows(DataConfig(dataset=str(path)), make_tokenizer())
    assert row.images == ()
    assert row.columns["images"] == ["pictures/none.png"]
    assert "images is not shown: images of this model are not trained on" in caplog.text
    with pytest.raises(UsageError, match="the model sees no images"):
        load_prompt_rows(DataConfig(dataset=str(path), image_column="images"), make_tokenizer())


def test_a_large_image_is_made_smaller_and_a_small_one_stays_as_it_is(load: Load):
    large = picture(3, width=90, height=40)
    [row] = load({"prompt": user("?"), "images": [large, RED]})
    first, second = ImagesOfPrompts(TOKEN_ID, max_pixels=56 * 40).encoded(row)
    shrunk = decode_image(first)
    assert (shrunk.width, shrunk.height) == (70, 31)
    assert second == RED
    assert ImagesOfPrompts(TOKEN_ID).encoded(row) == [large, RED]


def test_an_image_that_has_gone_ends_the_run_by_its_name(load: Load, tmp_path: Path):
    [row] = load({"prompt": user("?"), "images": ["pictures/red.png"]})
    (tmp_path / "pictures" / "red.png").unlink()
    with pytest.raises(RunError, match=r"red.png of a row cannot be read any more: No such file"):
        ImagesOfPrompts(TOKEN_ID).encoded(row)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"image": RED}, ("image", False)),
        ({"images": [RED, BLUE]}, ("images", True)),
        ({"image": None}, ("image", False)),
        ({"door": 1}, None),
    ],
)
def test_a_row_of_episodes_needs_no_prompt_for_its_images(
    tmp_path: Path, row: dict[str, Any], column: tuple[str, bool] | None
):
    """They are what its environment shows; the canary's prompts are made of others."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    config = DataConfig(dataset=str(tmp_path / "rows.jsonl"))
    kept = load_prompt_rows(config, TOKENIZER, of_episodes=RowsOfEpisodes(), image_token_id=TOKEN_ID)
    images = [one for one in (RED, BLUE) if str(one) in str(row)]
    assert (kept[0].images, kept[0].image_column, kept[0].token_ids) == (tuple(images), column, [])
    assert (kept.summary.most_images, kept.summary.first_with_images) == (len(images), None)


def test_a_page_shows_where_an_image_stands():
    assert prompt_text(user([text("Is "), PLACE, text(" red?")])) == "[user]\nIs <image> red?"
