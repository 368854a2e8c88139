"""A tiny vision-language model of each family whose images are trained on, with its image processor, in a folder."""

import base64
import random
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tests.tiny_vision_model import save_tiny_vision_model
from tests.trainer.made_episodes import VERSION, decided
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from grpo_trainer.algorithm.image_tokens import name_places
from grpo_trainer.algorithm.sequences import TrainingSequence, single_turn

IMAGE_TOKEN = 99
TEXT: dict[str, Any] = {
    "vocab_size": 101, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": None,
    "eos_token_id": 1, "initializer_range": 0.1, "tie_word_embeddings": False,
}  # fmt: skip
CLIP = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7, "initializer_range": 0.4,
}  # fmt: skip
IN_SPACE = {**TEXT, "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e4}}
QWEN_TOKENS = {
    "image_token_id": IMAGE_TOKEN, "video_token_id": 98, "vision_start_token_id": 97, "vision_end_token_id": 96,
}  # fmt: skip
PATCHES = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "initializer_range": 0.3}


def _idefics3() -> tuple[Any, Any]:
    vision = Idefics3VisionConfig(**CLIP)
    config = transformers.Idefics3Config(
        vision_config=vision, text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IMAGE_TOKEN, scale_factor=2,
        tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    return config, None


def _smolvlm() -> tuple[Any, Any]:
    config = transformers.SmolVLMConfig(
        vision_config=CLIP, text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IMAGE_TOKEN, scale_factor=2,
        tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    return config, SmolVLMImageProcessorPil(size={"longest_edge": 56}, max_image_size={"longest_edge": 28})


def _qwen2_vl() -> tuple[Any, Any]:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, **PATCHES}
    config = transformers.Qwen2VLConfig(
        text_config=IN_SPACE, vision_config=vision, tie_word_embeddings=False, **QWEN_TOKENS
    )
    return config, Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 16)


def _qwen2_5_vl() -> tuple[Any, Any]:
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
        "window_size": 56, "fullatt_block_indexes": [1], **PATCHES,
    }  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(
        text_config=IN_SPACE, vision_config=vision, tie_word_embeddings=False, **QWEN_TOKENS
    )
    return config, Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 16)


def _qwen3_vl() -> tuple[Any, Any]:
    vision = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
        "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64, **PATCHES, "patch_size": 16,
    }  # fmt: skip
    text = {**IN_SPACE, "head_dim": 32, "rope_parameters": {**IN_SPACE["rope_parameters"], "mrope_interleaved": True}}
    config = transformers.Qwen3VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=False, **QWEN_TOKENS
    )
    return config, Qwen2VLImageProcessorPil(patch_size=16, min_pixels=32 * 32, max_pixels=32 * 32 * 16)


def _llava() -> tuple[Any, Any]:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**CLIP), text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=IMAGE_TOKEN,
        vision_feature_select_strategy="default", vision_feature_layer=-1, tie_word_embeddings=False,
    )  # fmt: skip
    return config, CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})


def _llava_onevision() -> tuple[Any, Any]:
    config = transformers.LlavaOnevisionConfig(
        vision_config=transformers.SiglipVisionConfig(**CLIP), text_config=transformers.Qwen2Config(**TEXT),
        image_token_index=IMAGE_TOKEN,
        image_grid_pinpoints=[[28, 28], [28, 56], [56, 28]], vision_feature_layer=-1,
        vision_aspect_ratio="anyres_max_9", vision_feature_select_strategy="full", tie_word_embeddings=False,
    )  # fmt: skip
    size = {"height": 28, "width": 28}
    return config, LlavaOnevisionImageProcessorPil(size=size, image_grid_pinpoints=[[28, 28], [28, 56], [56, 28]])


def _internvl() -> tuple[Any, Any]:
    vision = {**CLIP, "image_size": [28, 28], "patch_size": [7, 7]}
    config = transformers.InternVLConfig(
        vision_config=vision, text_config=transformers.Qwen2Config(**TEXT),
        image_token_id=IMAGE_TOKEN, image_seq_length=4,
        downsample_ratio=0.5, vision_feature_layer=-1, tie_word_embeddings=False,
    )  # fmt: skip
    return config, GotOcr2ImageProcessorPil(size={"height": 28, "width": 28}, crop_to_patches=True, max_patches=3)


def _mistral3() -> tuple[Any, Any]:
    vision = {**CLIP, "image_size": 56, "head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    config = transformers.Mistral3Config(
        vision_config={**vision, "model_type": "pixtral"}, text_config=transformers.MistralConfig(**TEXT),
        image_token_index=IMAGE_TOKEN, spatial_merge_size=2, vision_feature_layer=-1, tie_word_embeddings=False,
    )  # fmt: skip
    return config, PixtralImageProcessorPil(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14})


def _llava_next() -> tuple[Any, Any]:
    config = transformers.LlavaNextConfig(
        vision_config=transformers.CLIPVisionConfig(**CLIP), text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=IMAGE_TOKEN, image_grid_pinpoints=[[28, 56], [56, 28]], vision_feature_layer=-1,
        vision_feature_select_strategy="default", tie_word_embeddings=False,
    )  # fmt: skip
    size = {"crop_size": {"height": 28, "width": 28}, "size": {"shortest_edge": 28}}
    return config, LlavaNextImageProcessorPil(**size, image_grid_pinpoints=[[28, 56], [56, 28]])


def _glm4v() -> tuple[Any, Any]:
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
        "image_size": 56, **PATCHES,
    }  # fmt: skip
    text = {**IN_SPACE, "rope_parameters": {**IN_SPACE["rope_parameters"], "partial_rotary_factor": 1.0}}
    config = transformers.Glm4vConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=False, image_token_id=IMAGE_TOKEN,
        image_start_token_id=97, image_end_token_id=96, video_start_token_id=95, video_end_token_id=94,
    )  # fmt: skip
    return config, Glm4vImageProcessorPil(size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 32})


def _qwen3_vl_moe() -> tuple[Any, Any]:
    dense, processor = _qwen3_vl()
    text = dense.text_config.to_dict() | {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "model_type": "qwen3_vl_moe_text",
    }  # fmt: skip
    vision = dense.vision_config.to_dict() | {"model_type": "qwen3_vl_moe"}
    config = transformers.Qwen3VLMoeConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=False, **QWEN_TOKENS
    )
    return config, processor


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "idefics3": _idefics3, "smolvlm": _smolvlm, "qwen2_vl": _qwen2_vl, "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl, "llava": _llava, "llava_onevision": _llava_onevision, "internvl": _internvl,
    "mistral3": _mistral3, "llava_next": _llava_next, "glm4v": _glm4v, "qwen3_vl_moe": _qwen3_vl_moe,
}  # fmt: skip


def save_family(name: str, folder: Path) -> Any:
    """Save the image processor, and return a model with random weights whose text alone is trained."""
    config, processor = FAMILIES[name]()
    if processor is None:
        save_tiny_vision_model(folder)
    else:
        processor.save_pretrained(folder)
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa").eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for trained in (model.get_decoder(), model.get_output_embeddings()):
        trained.requires_grad_(True)
    return model


def picture(seed: int, *, width: int = 56, height: int = 40) -> str:
    """Noise, as the base64 of a PNG file."""
    noise = Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height))
    file = BytesIO()
    noise.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def seen_sequences(counts: Callable[[str], int], *, image_token: int = IMAGE_TOKEN) -> list[TrainingSequence]:
    """Groups that ask the same about two pictures of one size, about both, and about none; two completions each, the
    first of which samples the image token. `counts`: the places of a picture."""
    rng = random.Random(1)
    red, blue = picture(1), picture(2)
    taken = []
    for number, images in enumerate([(red,), (blue,), (red, blue), ()]):
        prompt = [94, 95, *(token for image in images for token in (97, *[image_token] * counts(image), 96)), 93, 92]
        named = name_places(prompt, images, image_token)
        for one in range(2):
            said = [*([image_token] if one == 0 else []), *(rng.randrange(10, 90) for _ in range(4 + one))]
            episode = single_turn(
                f"e-{number}-{one}", named, said, versions=[(VERSION, len(said))], finish_reason="stop",
                logprobs=[-4.0] * len(said), images=images,
            )  # fmt: skip
            taken.append((episode, rng.gauss(0, 1)))
    return decided(taken)
