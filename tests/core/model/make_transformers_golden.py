#!/usr/bin/env python3
"""Makes tests/golden/<name>.gguf and <name>.npz: tiny random models and the logits that Hugging
Face transformers (5.23.0, torch 2.15.0, float32 on the CPU) computes with them.
Run: make_transformers_golden.py tests/golden
SPDX-License-Identifier: Apache-2.0
"""
import struct
import sys

import numpy as np
import torch
from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

N_TOKENS, VOCAB = 40, 96
CLASSES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
           "qwen3": (Qwen3Config, Qwen3ForCausalLM),
           "gemma2": (Gemma2Config, Gemma2ForCausalLM),
           "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM)}
# Seven of the forty tokens, so that the window matters.
WINDOW = 7
GEMMA_LAYERS = {"gemma2": ["sliding_attention", "full_attention"] * 2,
                "gemma3": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]}
GEMMA_SETTINGS = {"gemma2": {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
                  "gemma3": {}}

# name: (architecture, heads, kv heads, head_dim, tied, rope parameters, context)
MODELS = {
    "llama-gqa1": ("llama", 4, 4, 16, False, {"rope_type": "default", "rope_theta": 500.0}, 64),
    "llama-gqa4-llama3": ("llama", 4, 1, 16, True, {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 128}, 1024),
    "llama-gqa8-linear": ("llama", 8, 1, 16, False, {
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}, 256),
    "llama-gqa2-dynamic": ("llama", 4, 2, 16, True, {
        "rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}, 16),
    "qwen2-gqa4-yarn": ("qwen2", 4, 1, 32, True, {
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 16.0,
        "beta_slow": 1.5, "original_max_position_embeddings": 256}, 1024),
    "qwen3-gqa8": ("qwen3", 8, 1, 16, True, {"rope_type": "default", "rope_theta": 10000.0}, 64),
    "qwen3-gqa2-dynamic": ("qwen3", 4, 2, 16, False, {
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}, 16),
    "gemma2-gqa2": ("gemma2", 4, 2, 16, True, {"rope_type": "default", "rope_theta": 500.0}, 64),
    "gemma3-gqa4": ("gemma3", 4, 1, 16, True, {
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}, 64),
}

NAMES = [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output"),
         ("model.layers", "blk"), ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
         ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
         ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"),
         ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
         ("input_layernorm", "attn_norm"), ("pre_feedforward_layernorm", "ffn_norm"),
         ("post_feedforward_layernorm", "post_ffw_norm"), ("post_attention_layernorm", "ffn_norm")]


def gguf_name(arch, name):
    if arch.startswith("gemma"):
        name = name.replace("post_attention_layernorm", "post_attention_norm")
    for theirs, ours in NAMES:
        name = name.replace(theirs, ours)
    return name


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def write_gguf(path, metadata, tensors):
    """Tensors of two dimensions are written as bf16 (their values must be), others as f32."""
    head, data = b"", b""
    for key, value in metadata.items():
        head += gguf_string(key) + gguf_value(value)
    for name, array in tensors.items():
        is_matrix = array.ndim == 2
        dims = array.shape[::-1]
        head += gguf_string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", 30 if is_matrix else 0, len(data))
        bits = np.ascontiguousarray(array, np.float32)
        if is_matrix:
            assert not np.any(bits.view(np.uint32) & 0xFFFF)
            data += (bits.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            data += bits.tobytes()
        data += b"\0" * (-len(data) % 32)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + head
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % 32) + data)


def interleave(matrix, n_heads):
    """Rows of each head from (i, i + d/2) pairs to (2i, 2i + 1), as llama GGUFs have them."""
    rows, width = matrix.shape
    halves = matrix.reshape(n_heads, 2, rows // n_heads // 2, width)
    return halves.swapaxes(1, 2).reshape(rows, width)


def randomise(model, arch):
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.ndim == 2:
                p.copy_((noise * 1.5 / p.shape[1] ** 0.5).to(torch.bfloat16).float())
            else:
                shift = 0.0 if arch.startswith("gemma") else 1.0
                p.copy_(0.5 * noise if name.endswith("bias") else shift + 0.3 * noise)


def rope_metadata(arch, rope, context):
    if arch == "gemma3":
        return {"gemma3.rope.freq_base": rope["full_attention"]["rope_theta"]}
    kind = rope["rope_type"]
    out = {f"{arch}.rope.freq_base": rope["rope_theta"]}
    if kind in ("default", "llama3"):
        return out
    out[f"{arch}.rope.scaling.type"] = kind
    out[f"{arch}.rope.scaling.factor"] = rope["factor"]
    out[f"{arch}.rope.scaling.original_context_length"] = rope.get(
        "original_max_position_embeddings", context)
    for key in ("beta_fast", "beta_slow"):
        if key in rope:
            out[f"{arch}.rope.scaling.yarn_{key}"] = rope[key]
    return out


def llama3_divisors(rope, head_dim):
    """rope_freqs.weight: the unscaled frequencies over those that transformers uses."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim,
                         rope_parameters=rope, max_position_embeddings=1024)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = rope["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    return (plain / scaled.double().numpy()).astype(np.float32)


def make(folder, name, arch, heads, kv_heads, head_dim, tied, rope, context):
    config_class, model_class = CLASSES[arch]
    n_layers, extra = 2, {}
    if arch in GEMMA_LAYERS:
        n_layers = len(GEMMA_LAYERS[arch])
        extra = {"sliding_window": WINDOW, "layer_types": GEMMA_LAYERS[arch],
                 "query_pre_attn_scalar": head_dim, **GEMMA_SETTINGS[arch]}
    config = config_class(
        hidden_size=32, intermediate_size=48, num_hidden_layers=n_layers, vocab_size=VOCAB,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        tie_word_embeddings=tied, rope_parameters=dict(rope), max_position_embeddings=context,
        rms_norm_eps=1e-5, attn_implementation="eager", bos_token_id=1, eos_token_id=2,
        pad_token_id=0, **extra)
    model = model_class(config).float().eval()
    randomise(model, arch)
    ids = torch.randint(0, VOCAB, (1, N_TOKENS), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0].numpy()
    tensors = {}
    for full_name, p in model.named_parameters():
        array = p.detach().numpy()
        if arch == "llama" and "q_proj" in full_name:
            array = interleave(array, heads)
        if arch == "llama" and "k_proj" in full_name:
            array = interleave(array, kv_heads)
        if arch in GEMMA_LAYERS and array.ndim == 1:
            array = array + np.float32(1)  # transformers multiplies by 1 + weight, a GGUF holds the sum
        tensors[gguf_name(arch, full_name)] = array
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_divisors(rope, head_dim)
    metadata = {
        "general.architecture": arch, "general.name": name, f"{arch}.block_count": n_layers,
        f"{arch}.embedding_length": 32, f"{arch}.feed_forward_length": 48,
        f"{arch}.context_length": 1024, f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads, f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.dimension_count": head_dim, f"{arch}.vocab_size": VOCAB,
        **rope_metadata(arch, rope, context)}
    if arch in GEMMA_LAYERS:
        metadata[f"{arch}.attention.sliding_window"] = WINDOW
    for key, value in GEMMA_SETTINGS.get(arch, {}).items():
        metadata[f"{arch}.{key}"] = value
    write_gguf(f"{folder}/{name}.gguf", metadata, tensors)
    np.savez(f"{folder}/{name}.npz", ids=ids[0].numpy().astype(np.int32),
             logits=logits.astype(np.float32))
    print(name, "logits", float(logits.min()), "to", float(logits.max()), "std", float(logits.std()))


for model_name, spec in MODELS.items():
    make(sys.argv[1], model_name, *spec)
