"""Arguments of the CPU kernels: mirrors of the structs in csrc/."""

from __future__ import annotations

import ctypes


class KernelArgs(ctypes.Structure):
    """Mirror of PagedAttentionArgs; the fields are described there."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "k_cache", "v_cache", "slots", "block_table")),
        *((name, ctypes.c_void_p) for name in ("window_slots", "window_block_table")),
        *((name, ctypes.c_void_p) for name in ("tile_seq", "tile_start", "tile_len", "positions")),
        *((name, ctypes.c_void_p) for name in ("key_end", "full_key_end", "sinks")),
        *((f"{name}_stride_{dim}", ctypes.c_int64) for name in "qkv" for dim in "th"),
        *((name, ctypes.c_int32) for name in ("num_tokens", "num_tiles", "block_table_stride", "block_size")),
        *((name, ctypes.c_int32) for name in ("num_q_heads", "num_kv_heads", "head_dim", "v_head_dim", "window")),
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


class PackedWeight(ctypes.Structure):
    """Mirror of PackedWeight in linear_panel.h."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("num_quant_panels", ctypes.c_int64),
        ("num_float_panels", ctypes.c_int64),
    ]


class HeadsArgs(ctypes.Structure):
    """Mirror of HeadsArgs in linear_heads.cpp; the fields are described there."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "out", "workspace")),
        *((f"{name}_stride_{dim}", ctypes.c_int64) for name in ("x", "out") for dim in ("row", "head")),
        *((name, ctypes.c_int64) for name in ("rows", "heads", "out_features", "in_features")),
        ("is_wide", ctypes.c_int32),
    ]


class ExpertsArgs(ctypes.Structure):
    """Mirror of ExpertsArgs in experts.cpp; the fields are described there."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "chosen", "shares", "gate_up", "down", "out", "workspace")),
        *((name, ctypes.c_int64) for name in ("rows", "top_k", "num_experts")),
        *((name, ctypes.c_float) for name in ("alpha", "limit")),
        ("activation", ctypes.c_int32),
    ]


class RecurrentLayerArgs(ctypes.Structure):
    """Mirror of RecurrentLayerArgs in decoder_args.h; the fields are described there."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("conv_weight", "conv_bias", "decay_rates", "decay_bias", "norm", "skip")),
        *((name, ctypes.c_int32) for name in ("conv_width", "num_key_heads", "num_heads", "key_dim", "value_dim")),
        ("norm_eps", ctypes.c_float),
    ]


class DecoderLayerArgs(ctypes.Structure):
    """Mirror of DecoderLayerArgs in decoder_args.h; the fields are described there."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, PackedWeight) for name in ("in_", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("sinks", "recurrent", "ranks")),
        *((name, ctypes.c_int32) for name in ("num_q_heads", "num_kv_heads", "head_dim", "v_head_dim", "window")),
        *((name, ctypes.c_int32) for name in ("has_gate", "index")),
        *((name, ctypes.c_float) for name in ("norm_eps", "mlp_norm_eps", "qk_norm_eps", "scaling", "softcap")),
        ("residual_scale", ctypes.c_float),
    ]


class DecoderEndsArgs(ctypes.Structure):
    """Mirror of DecoderEndsArgs in decoder_args.h; the fields are described there."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("embedding", "norm")),
        ("head", PackedWeight),
        *((name, ctypes.c_float) for name in ("embedding_scale", "norm_eps")),
        *((name, ctypes.c_int32) for name in ("embedding_bits", "rounds")),
    ]


class DecoderStepArgs(ctypes.Structure):
    """Mirror of DecoderStepArgs in decoder_args.h; the fields are described there."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("attention", "layers", "k_caches", "v_caches", "conv_states")),
        *((name, ctypes.c_void_p) for name in ("matrix_states", "segments", "x", "out", "cos", "sin")),
        *((name, ctypes.c_void_p) for name in ("token_ids", "positions", "ends", "wanted", "logits")),
        *((name, ctypes.c_void_p) for name in ("workspace", "stage_ns", "lora_slots", "lora_adapters")),
        *((name, ctypes.c_int64) for name in ("num_layers", "rotary_dim", "num_wanted")),
        ("cache_bits", ctypes.c_int32),
    ]


class LoraUpdate(ctypes.Structure):
    """Mirror of LoraUpdate in lora.h; the fields are described there."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("a", "b")),
        *((name, ctypes.c_int64) for name in ("in_features", "out_features", "first")),
        *((name, ctypes.c_int32) for name in ("rank", "is_bf16")),
        ("scale", ctypes.c_float),
    ]


#: Name in csrc/ -> mirror, of all but the first.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "recurrent_layer_args": RecurrentLayerArgs,
    "decoder_layer_args": DecoderLayerArgs,
    "decoder_ends_args": DecoderEndsArgs,
    "decoder_step_args": DecoderStepArgs,
    "experts_args": ExpertsArgs,
    "heads_args": HeadsArgs,
    "lora_update": LoraUpdate,
}
