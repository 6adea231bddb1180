"""What transformers assumes of fields that a `config.json` leaves out, per family."""

from paxkv.models.hf_fields import Fields

DEEPSEEK_V2_DEFAULTS: Fields = dict(
    vocab_size=102_400,
    hidden_size=4096,
    intermediate_size=11_008,
    moe_intermediate_size=1407,
    num_hidden_layers=32,
    num_attention_heads=32,
    first_k_dense_replace=0,
    kv_lora_rank=512,
    q_lora_rank=1536,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=None,  # every file must say it
    n_group=None,
    topk_group=None,
    topk_method="greedy",
    routed_scaling_factor=1.0,
    max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_id=2,
)
DEEPSEEK_V3_DEFAULTS: Fields = DEEPSEEK_V2_DEFAULTS | dict(
    vocab_size=129_280,
    hidden_size=7168,
    intermediate_size=18_432,
    moe_intermediate_size=2048,
    num_hidden_layers=61,
    num_attention_heads=128,
    first_k_dense_replace=3,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    n_group=8,
    topk_group=4,
    topk_method="noaux_tc",
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    max_position_embeddings=4096,
    bos_token_id=0,
    eos_token_id=1,
)
LLAMA_DEFAULTS: Fields = dict(
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=11_008,
    num_hidden_layers=32,
    num_attention_heads=32,
    max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_id=2,
)
MISTRAL_DEFAULTS: Fields = LLAMA_DEFAULTS | dict(
    intermediate_size=14_336,
    num_key_value_heads=8,
    max_position_embeddings=131_072,
    sliding_window=4096,
)
QWEN2_DEFAULTS: Fields = dict(
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=22_016,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    max_position_embeddings=32_768,
    sliding_window=4096,
    max_window_layers=28,
)
QWEN3_DEFAULTS: Fields = QWEN2_DEFAULTS | dict(head_dim=128)
GEMMA2_DEFAULTS: Fields = dict(
    vocab_size=256_000,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=26,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    query_pre_attn_scalar=256,
    max_position_embeddings=8192,
    sliding_window=4096,
    hidden_activation="gelu_pytorch_tanh",  # early files have hidden_act="gelu" beside it
    attn_logit_softcapping=50.0,
    final_logit_softcapping=30.0,
    bos_token_id=2,
    eos_token_id=1,
    tie_word_embeddings=True,
)
GEMMA3_DEFAULTS: Fields = GEMMA2_DEFAULTS | dict(
    vocab_size=262_208,
    max_position_embeddings=131_072,
    attn_logit_softcapping=None,
    final_logit_softcapping=None,
)
OPT_DEFAULTS: Fields = dict(
    vocab_size=50_272,
    hidden_size=768,
    num_hidden_layers=12,
    ffn_dim=3072,
    max_position_embeddings=2048,
    num_attention_heads=12,
    bos_token_id=2,
    eos_token_id=2,
    enable_bias=True,
)
GPT2_DEFAULTS: Fields = dict(
    vocab_size=50_257,
    n_positions=1024,
    n_embd=768,
    n_layer=12,
    n_head=12,
    layer_norm_epsilon=1e-5,
    scale_attn_weights=True,
    bos_token_id=50_256,
    eos_token_id=50_256,
)
