"""Images in episodes: what users' code may return, what reaches the session, and what a transcript keeps of it."""

import asyncio
import base64
import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.trainer.made_vision import picture

from grpo_proto.images import decode_image
from grpo_proto.messages.sessions import GeneratedTurn, GenerateTurn
from grpo_trainer.config.episodes import EpisodesConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.data.sent_images import SEES_NONE, ImagesOfPrompts
from grpo_trainer.episodes import pictures, plays
from grpo_trainer.episodes.environments import EnvironmentPlayer
from grpo_trainer.episodes.identity import EpisodeAsked
from grpo_trainer.episodes.messages import EnvironmentFault, new_messages
from grpo_trainer.episodes.processes import Nursery
from grpo_trainer.episodes.programs import ProgramPlayer
from grpo_trainer.episodes.swift_plays import _of_the_user
from grpo_trainer.episodes.tools import Tools
from grpo_trainer.errors import RunError

RED = picture(1)
FILE = base64.b64decode(RED)
PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{RED}"}}
PLACE = {"type": "image"}
GAME = f"{Path(__file__).with_name('picture_games.py')}:Mirror"


def pillow(encoded: str = RED) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(encoded)))


def shown(content: Any, role: str = "user") -> Any:
    (message,) = new_messages([{"role": role, "content": content}], by="step")
    return message["content"]


def pixels(part: dict[str, Any]) -> bytes:
    return decode_image(part["image_url"]["url"].partition(",")[2]).tobytes()


@pytest.mark.parametrize(
    "part",
    [
        {**PLACE, "image": FILE},
        {**PLACE, "image": RED},
        {**PLACE, "image": f"data:image/png;base64,{RED}"},
        {**PLACE, "image": {"bytes": FILE, "path": None}},
        {**PLACE, "bytes": FILE},
        {**PLACE, "base64": RED},
        PART,
        {"type": "image_url", "image_url": PART["image_url"]["url"]},
    ],
)
def test_an_image_in_any_form_is_a_part_with_a_data_url(part: dict[str, Any]):
    assert shown(["a", {"type": "text", "text": "b"}, part], "tool") == [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}, PART,
    ]  # fmt: skip


def test_a_file_is_read(tmp_path: Path):
    (tmp_path / "red.png").write_bytes(FILE)
    for part in ({**PLACE, "image": tmp_path / "red.png"}, {**PLACE, "path": str(tmp_path / "red.png")}):
        assert shown([part]) == [PART]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "1", "P"])
def test_an_image_of_pillow_is_written_without_loss(mode: str):
    image = pillow().convert(mode)
    for content in (image, [image], [{**PLACE, "image": image}]):
        (part,) = shown(content)
        assert pixels(part) == pictures.opened(part["image_url"]["url"].partition(",")[2]).convert("RGB").tobytes()
        assert pixels(part) == image.convert("RGB").tobytes()


def test_an_image_of_pillow_is_turned_as_its_file_says():
    file, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6
    pillow().save(file, "JPEG", exif=exif)
    (part,) = shown(Image.open(file))
    assert decode_image(part["image_url"]["url"].partition(",")[2]).size == (40, 56)


def test_a_mode_that_no_png_has_is_converted():
    (part,) = shown(pillow().convert("CMYK"))
    assert decode_image(part["image_url"]["url"].partition(",")[2]).size == (56, 40)


@pytest.mark.parametrize("content", [["a", {"type": "text", "text": "b"}], "ab"])
def test_parts_that_are_all_texts_are_a_text(content: Any):
    assert shown(content, "system") == "ab"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{**PLACE, "image": "https://a.b/c.png"}], r"step returned an image at https://a\.b/c\.png: .* download it"),
        ([PLACE], "a part of type image without an image"),
        ([{**PLACE, "image": b"no picture"}], "an image that cannot be used: the file is none of PNG, JPEG, WEBP"),
        ([{**PLACE, "image": "red.png"}], r"the image red\.png, which is no file"),
        (
            [{**PLACE, "image": np.zeros((2, 2, 3))}],
            "an image of type ndarray: give one of Pillow, bytes, a path or base64",
        ),
        ([{"type": "image_url", "image_url": {"url": "data:image/png,abc"}}], "its URL is not data:image"),
        (pillow().resize((1, 201)), "an image of 1 × 201 pixels, thinner than 1 : 200"),
        (pillow().convert("F"), "an image of mode F, whose values may be of any range"),
        (pillow().resize((1, 1)).crop((0, 0, 0, 0)), "an image of mode RGB that cannot be written"),
        ([PART] * 17, "more than 16 images"),
        ([PART, {"type": "video", "video": "a.mp4"}], "a part of type 'video'; only texts and images"),
    ],
)
def test_what_cannot_be_shown_is_named(content: Any, said: str):
    with pytest.raises(EnvironmentFault, match=said):
        shown(content)


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_users_and_tools_show_images(role: str):
    with pytest.raises(EnvironmentFault, match=f"an image in a message of role {role}: only one of user or tool"):
        shown([PART], role)


def test_the_images_of_one_call_have_a_bound_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures, "MAX_PICTURE_MIB", 1.5 * len(RED) / 2**20)
    assert shown([PART]) == [PART]
    with pytest.raises(EnvironmentFault, match=r"images of more than .* MiB in base64"):
        new_messages([{"role": "user", "content": [PART]}] * 2, by="step")


def look(at: str) -> Any:
    """Look.

    Args:
        at: what to look at
    """
    found: dict[str, Any] = {
        "image": pillow(), "both": [pillow(), "red"], "parts": [{"type": "text", "text": "red"}, PART],
        "broken": [{**PLACE, "image": "no.png"}], "list": [1, 2], "part": PART, "tuple": (pillow(), "red"),
    }  # fmt: skip
    return found[at]


@pytest.fixture
def _no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept by the signal that limits the tests, too."""
    for module in ("plays", "tools"):
        monkeypatch.setattr(
            f"grpo_trainer.episodes.{module}.call",
            lambda function, *given, timeout_s, **named: function(*given, **named),
        )


@pytest.mark.usefixtures("_no_limits")
def test_a_tool_may_return_images():
    def answer(*asked: str) -> list[Any]:
        calls = [{"id": at, "function": {"name": "look", "arguments": {"at": at}}} for at in asked]
        found = Tools([look]).answer({"tool_calls": calls}, timeout_s=5, budget_s=5)
        return [message["content"] for message in found["messages"]]

    image, both, parts, broken, a_list, part, a_tuple = answer(
        "image", "both", "parts", "broken", "list", "part", "tuple"
    )
    assert (part, a_tuple) == ([PART], both)
    assert [pixels(part) for part in (*image, both[0], parts[1])] == [decode_image(RED).tobytes()] * 3
    assert (both[1], parts[0]) == ({"type": "text", "text": "red"}, {"type": "text", "text": "red"})
    assert broken == str({"error": "look returned the image no.png, which is no file"})
    assert a_list == "[1, 2]"


class Door:
    """As TRL's environment_factory takes it."""

    def reset(self, image: Any) -> Any:
        return [{"type": "text", "text": "Or this? "}, {**PLACE, "image": image}]


@pytest.mark.usefixtures("_no_limits")
def test_what_a_class_for_trl_shows_stands_behind_the_last_message():
    play = plays.TrlClass("Door", Door, [], drops_environment=False)
    prompt = [{"role": "user", "content": [PART, {"type": "text", "text": "This?"}]}]
    for asked, before in ((prompt, [PART]), ("This?", [])):
        found = play.reset(row={"image": pillow()}, prompt=asked, seed=0, timeout_s=5)
        *begin, last = found["messages"][0]["content"]
        assert begin == [*before, {"type": "text", "text": "This?"}, {"type": "text", "text": "Or this? "}]
        assert pixels(last) == decode_image(RED).tobytes()


def test_an_observation_of_a_gym_may_be_an_image():
    (message,) = new_messages(_of_the_user(pillow()), by="step")
    assert (message["role"], pixels(message["content"][0])) == ("user", decode_image(RED).tobytes())


class Session:
    """Stands for a recording and its session: keeps what it is asked, and what the episode ended with."""

    def __init__(self, config: EpisodesConfig, images: ImagesOfPrompts):
        self.images = images
        self.config, self.session, self.place = config, self, self
        self.retry_for_s, self.max_turn_tokens = 0.0, 8
        self.asked: list[GenerateTurn] = []
        self.ending: Any = None
        self.transcript: Any = None

    async def open(self) -> None:
        pass

    async def generate(self, request: GenerateTurn, *, retry_for_s: float) -> GeneratedTurn:
        number = len(self.asked)
        self.asked.append(request)
        said = {"role": "assistant", "content": "red"}
        return GeneratedTurn.model_validate(
            {"turn": number, "segment": 0, "message": said, "text": "red", "token_ids": [1], "logprobs": [-1.0],
             "versions": [(0, 1)], "finish_reason": "stop", "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
        )  # fmt: skip

    async def ended(self, ending: Any, *, messages: Any, **_: Any) -> Any:
        self.ending, self.transcript = ending, messages
        return self

    def sent(self, turn: int) -> Any:
        return [message.model_dump(exclude_none=True) for message in self.asked[turn].messages or []]


PROMPT = [{"role": "user", "content": [PLACE, {"type": "text", "text": "Which colour?"}]}]
ROW = PromptRow(4, [], PROMPT, {"prompt": PROMPT}, images=(RED,), image_column=("image", False))


async def played(row: PromptRow, images: ImagesOfPrompts, folder: Path) -> Session:
    config = EpisodesConfig(environment=GAME, max_turns=4)
    session = Session(config, images)
    async with Nursery(environments=[GAME]) as nursery:
        player = EnvironmentPlayer(nursery, config, EpisodeAsked(0, 0, row, seed=1), folder / "a.log")
        await player.play(session)  # type: ignore[arg-type]
    return session


@pytest.mark.processes
async def test_an_environment_gets_the_images_of_its_row_and_shows_its_own(tmp_path: Path):
    session = await played(ROW, ImagesOfPrompts(7, max_pixels=28 * 20), tmp_path)
    assert session.ending.status == "completed", session.ending
    (first,), (second,) = session.sent(0), session.sent(1)
    question, turned = first["content"], second["content"]
    assert [part["type"] for part in question + turned] == ["image_url", "text", "text", "image_url"]
    one, other = (decode_image(part["image_url"]["url"].partition(",")[2]) for part in (question[0], turned[1]))
    assert one.size == other.size == (28, 20)
    assert other.transpose(Image.Transpose.ROTATE_180).tobytes() == one.tobytes()
    assert [message["content"] for message in session.transcript] == [
        [PLACE, {"type": "text", "text": "Which colour?"}], "red", [{"type": "text", "text": "Turned: "}, PLACE], "red",
    ]  # fmt: skip


@pytest.mark.processes
async def test_an_image_before_a_model_that_sees_none_ends_the_episode_by_its_name(tmp_path: Path):
    session = await played(ROW, SEES_NONE, tmp_path)
    assert (session.ending.status, session.asked) == ("failed", [])
    assert "its messages show an image, and images of this model are not trained on" in session.ending.detail


async def test_a_row_with_more_than_a_call_holds_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_trainer.episodes.environments.MAX_PICTURE_MIB", 0)
    config = EpisodesConfig(environment=GAME)
    player = EnvironmentPlayer(None, config, EpisodeAsked(0, 0, ROW, seed=1), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"the images of row 5 have .* MiB in base64"):
        await player._images_of_row(ImagesOfPrompts(7))


@pytest.mark.parametrize(("column", "found"), [(("image", False), RED), (("images", True), [RED]), (None, None)])
async def test_a_program_gets_the_images_of_its_row_as_base64(column: Any, found: Any, tmp_path: Path):
    row = replace(ROW, image_column=column)
    config = EpisodesConfig(agent=["a"])
    player = ProgramPlayer(None, config, EpisodeAsked(0, 0, row, seed=1), tmp_path / "a.log")  # type: ignore[arg-type]
    await asyncio.to_thread(player._write_row, ImagesOfPrompts(7))
    written = json.loads(player.row_file.read_text())
    assert written == {"prompt": [{"role": "user", "content": [PART, {"type": "text", "text": "Which colour?"}]}]} | (
        {} if column is None else {column[0]: found}
    )
