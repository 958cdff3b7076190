"""A tiny random target with a chat tokenizer, built in memory: no download, no weights."""

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specdemo.training.target import Target

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, and the chat's special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(special + alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        bos_token="<|im_start|>",
        chat_template=TEMPLATE,
    )


@pytest.fixture(scope="session")
def target() -> Target:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=320,  # a multiple of 64, more than the tokenizer has
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    weights = LlamaForCausalLM(config).state_dict()
    weights["model.embed_tokens.weight"] *= 20  # clear preferences, so that there is something to learn
    return Target(weights, config, tokenizer, "0" * 64)


@pytest.fixture(scope="session")
def folder(target, tmp_path_factory):
    """The tiny target as a checkpoint folder."""
    folder = tmp_path_factory.mktemp("target")
    target.config.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    kept = {name: value.contiguous() for name, value in target.weights.items() if name != "lm_head.weight"}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
