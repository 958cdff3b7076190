"""Tiny GGUF files, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from transformers import PreTrainedModel

TOKENS = ["<s>", "</s>", "a", "b", "c", "d", "ab", "<|eot_id|>"]
_CONTROL = {0, 1, 7}
CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}ab"

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    kind: str = "llama",
    more: Callable[[GGUFWriter], object] = lambda writer: None,
    tokens: Sequence[str] = TOKENS,
    merges: Sequence[str] = ("a b",),
    rule: str | None = "default",
) -> Path:
    """A file with the model's weights and a vocabulary of a few tokens. more: adds what else it should hold.
    rule: how text is cut before it is merged."""
    config, writer = model.config, GGUFWriter(path, kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    if rule:
        writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if id in _CONTROL else TokenType.NORMAL for id in range(len(tokens))])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(CHAT)
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if kind == "llama" and ".q_proj." in name:
            values = _interleaved(values, config.num_attention_heads)
        if kind == "llama" and ".k_proj." in name:
            values = _interleaved(values, config.num_key_value_heads)
        for ours, theirs in _NAMES.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, values)
    more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order in which llama.cpp rotates them: pairs side by side."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
