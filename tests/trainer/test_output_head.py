import pytest
import torch
from tests.tiny_model import make_model
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from grpo_trainer.engine.model import attention_for
from grpo_trainer.engine.output_head import LogitTransform, TokenLoss
from grpo_trainer.engine.policy import Policy

# Four rows of 20 tokens; completions begin and end anywhere.
SPANS = [(5, 14), (3, 11), (14, 20), (1, 20)]


def tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    input_ids_BL = torch.randint(5, 100, (len(SPANS), 20), generator=generator)
    hidden_N = torch.cat([20 * row + torch.arange(start, end) - 1 for row, (start, end) in enumerate(SPANS)])
    return input_ids_BL, hidden_N, input_ids_BL.flatten()[hidden_N + 1]


def plain(model: torch.nn.Module, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from the whole [B, L, V] logits of transformers' own forward."""
    input_ids_BL, hidden_N, target_N = tokens()
    log_probabilities = (model(input_ids_BL).logits.float() / temperature).log_softmax(-1).flatten(0, 1)[hidden_N]
    entropy_N = -(log_probabilities.exp() * log_probabilities).sum(-1)
    return log_probabilities.gather(1, target_N[:, None])[:, 0], entropy_N


def gradients(model: torch.nn.Module, logprobs_N: torch.Tensor, entropy_N: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    weights, entropy_weights = torch.randn(2, logprobs_N.numel(), generator=generator)
    loss = (weights * logprobs_N).sum() + (entropy_weights * entropy_N).sum()
    return torch.cat([g.flatten().float() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk_tokens", [1, 5, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunks_equal_the_plain_computation_in_value_and_gradient(tied: bool, chunk_tokens: int, temperature: float):
    model = make_model(tied=tied, hidden_size=64)
    expected = plain(model, temperature)
    found = Policy(model, temperature=temperature, chunk_tokens=chunk_tokens)(*tokens())
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=2e-6)
    difference = gradients(model, *found) - gradients(model, *expected)
    assert difference.norm() < 2e-6 * gradients(model, *plain(model, temperature)).norm()


def test_a_head_with_a_bias():
    model = make_model(tied=False, hidden_size=64)
    model.lm_head.bias = torch.nn.Parameter(torch.randn(model.config.vocab_size))
    found, expected = Policy(model, temperature=0.7, chunk_tokens=7)(*tokens()), plain(model, 0.7)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=2e-6)
    difference = gradients(model, *found) - gradients(model, *expected)
    assert difference.norm() < 2e-6 * gradients(model, *plain(model, 0.7)).norm()


def test_bf16_weights_have_float32_softmax():
    model = make_model(tied=True, hidden_size=64, dtype=torch.bfloat16)
    found, expected = Policy(model, temperature=1.0, chunk_tokens=6)(*tokens()), plain(model, 1.0)
    assert found[0].dtype == torch.float32
    # The logits themselves are bf16 on both sides; one rounding step at their size is 2⁻⁶.
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=2**-6)
    difference = gradients(model, *found) - gradients(model, *expected)
    assert difference.norm() < 0.02 * gradients(model, *plain(model, 1.0)).norm()


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_in_float32_takes_the_weights_as_they_are(tied: bool):
    """The reference: the same decoder, and a head whose products are in float32."""
    model = make_model(tied=tied, hidden_size=64, dtype=torch.bfloat16)
    found = Policy(model, temperature=0.7, chunk_tokens=6, in_float32=True)(*tokens())
    input_ids_BL, hidden_N, target_N = tokens()
    hidden_BLH = model.model(input_ids=input_ids_BL).last_hidden_state
    logits_BLV = hidden_BLH.float() @ model.lm_head.weight.float().T
    log_probabilities = (logits_BLV / 0.7).log_softmax(-1).flatten(0, 1)[hidden_N]
    expected = log_probabilities.gather(1, target_N[:, None])[:, 0]
    entropy_N = -(log_probabilities.exp() * log_probabilities).sum(-1)
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=2e-6)
    # Gradients are rounded to bfloat16 where they leave the head.
    wanted = gradients(model, expected, entropy_N)
    assert (gradients(model, *found) - wanted).norm() < 0.02 * wanted.norm()
    assert (found[0] - plain(model, 0.7)[0]).abs().max() > 1e-4, "the model's own head rounds"


def spread(count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(1))


def curved(logprobs_N: torch.Tensor, entropy_N: torch.Tensor, chunk: slice) -> torch.Tensor:
    """A loss whose slope depends on the token's own logprob, on its entropy, and on which token it is."""
    assert not entropy_N.requires_grad
    return (spread(42)[chunk] * (logprobs_N + 0.1 * logprobs_N**2) * entropy_N).sum()


def tried(policy: Policy, token_loss: TokenLoss | None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logprobs, entropy and `curved`, in one pass or in two; and the gradients of 4 × that loss, as of four ranks."""
    logprobs_N, entropy_N, *loss = policy(*tokens(), token_loss=token_loss)
    loss = loss or [curved(logprobs_N, entropy_N.detach(), slice(None))]
    trained = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
    return [logprobs_N, entropy_N, loss[0]], list(torch.autograd.grad(4.0 * loss[0], trained))


@pytest.mark.parametrize("what", ["tied", "untied", "bias", "frozen", "bfloat16", "in float32", "gemma2"])
def test_one_pass_equals_two(what: str):
    model = make_model(tied=what == "tied", hidden_size=64, dtype=torch.bfloat16 if "float" in what else torch.float32)
    if what == "gemma2":
        model = family(Gemma2Config(**SMALL, head_dim=32, final_logit_softcapping=2.0))
    if what == "bias":
        model.lm_head.bias = torch.nn.Parameter(torch.randn(model.config.vocab_size))
    if what == "frozen":
        model.lm_head.requires_grad_(False)
    policy = Policy(model, temperature=0.7, chunk_tokens=5, in_float32=what == "in float32")
    (found, gradients_found), (expected, gradients_expected) = tried(policy, curved), tried(policy, None)
    assert [value.requires_grad for value in found] == [False, False, True]
    torch.testing.assert_close(found, [value.detach() for value in expected], rtol=1e-6, atol=1e-6, check_stride=False)
    # Whatever is rounded is rounded alike.
    torch.testing.assert_close(gradients_found, gradients_expected, rtol=1e-6, atol=1e-6)


def test_padding_on_the_right_changes_nothing():
    model = make_model(tied=True, hidden_size=64)
    input_ids_BL, hidden_N, target_N = tokens()
    policy = Policy(model, temperature=1.0, chunk_tokens=8)
    padded = torch.cat([input_ids_BL, torch.zeros(len(SPANS), 9, dtype=torch.long)], dim=1)
    in_padded_N = hidden_N + 9 * (hidden_N // 20)
    torch.testing.assert_close(
        policy(padded, in_padded_N, target_N)[0], policy(input_ids_BL, hidden_N, target_N)[0], rtol=1e-6, atol=1e-6
    )


def test_without_completion_tokens_every_parameter_still_gets_a_gradient_of_zero():
    model = make_model(tied=False, hidden_size=64)
    nothing = torch.empty(0, dtype=torch.long)
    logprobs_N, entropy_N = Policy(model, temperature=1.0, chunk_tokens=8)(torch.zeros(1, 1).long(), nothing, nothing)
    (logprobs_N.sum() + entropy_N.sum()).backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    model.zero_grad()
    Policy(model, temperature=1.0, chunk_tokens=8)(torch.zeros(1, 1).long(), nothing, nothing, token_loss=curved)[
        2
    ].backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("passes", [1, 2])
def test_nothing_as_large_as_all_logits_is_ever_allocated(passes: int):
    """The tensors of a vocabulary's width, by a dispatch mode: none has more than a chunk's tokens."""
    model = make_model(tied=False, hidden_size=64, vocab_size=20_000)
    policy = Policy(model, temperature=1.0, chunk_tokens=4)
    largest, products = 0, 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest, products
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if torch.is_tensor(tensor) and tensor.dim() == 2 and tensor.shape[1] == 20_000:
                    largest = max(largest, tensor.shape[0])
                    products += func is torch.ops.aten.mm.default
            return result

    with Watch():
        found = policy(*tokens(), token_loss=curved if passes == 1 else None)
        (found[2] if passes == 1 else found[0].sum()).backward()
    # [64, V] is the transposed weight of the head, no logits.
    assert found[0].numel() == 42
    assert largest in (4, 64)
    assert products == passes * 11, "of the logits of 42 tokens, four at a time"


def family(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    # Random weights give logits near 0, where no cap shows.
    model.get_output_embeddings().weight.data.mul_(10.0)
    return model


SMALL = {"vocab_size": 101, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SMALL, head_dim=32, final_logit_softcapping=2.0),
        GraniteConfig(**SMALL, logits_scaling=8.0),
        CohereConfig(**SMALL, logit_scale=0.25),
    ],
    ids=lambda config: config.model_type,
)
def test_logits_that_a_family_transforms(config: PretrainedConfig):
    model = family(config)
    expected = plain(model, 0.7)
    found = Policy(model, temperature=0.7, chunk_tokens=7)(*tokens())
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=2e-6)
    difference = gradients(model, *found) - gradients(model, *expected)
    assert difference.norm() < 2e-6 * gradients(model, *plain(model, 0.7)).norm()
    # The transform shows: without it the logprobs are others.
    without = Policy(model, temperature=0.7, chunk_tokens=7)
    without.head.transform = LogitTransform()
    assert (without(*tokens())[0] - expected[0]).abs().max() > 0.1


def test_a_family_that_sdpa_computes_wrongly_gets_eager_attention():
    for config, expected in ((Gemma2Config(**SMALL, head_dim=32), "eager"), (GraniteConfig(**SMALL), "sdpa")):
        assert attention_for(config, "sdpa") == expected
