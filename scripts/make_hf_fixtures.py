"""Makes tests/fixtures/hf: one tiny random model per family, with what it must compute.

    python -m venv hf-venv
    hf-venv/bin/pip install torch==2.13.0 transformers safetensors
    hf-venv/bin/python scripts/make_hf_fixtures.py

Needs torch and transformers; the tests that read the fixtures need neither. Each folder
holds config.json, safetensors and expected.json: the ids of a prompt longer than any
window, the greedy continuation and logits at some positions of both, from float32 eager
attention over the whole sequence. Prints the smallest gap between the two best logits,
which must exceed 1e-3 for a differing token to be a bug.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

NUM_PROMPT = 40  # tokens
NUM_GREEDY = 24  # tokens
WINDOW = 16  # tokens
MIN_GAP = 5e-3
MIN_DISTINCT = 10  # of the greedy tokens, so that decoding does not repeat itself
POSITIONS = (0, 1, 15, 16, 17, 38, 39, 40, 50, 62)  # of prompt and continuation
MAX_SHARD_SIZE = {"llama2": "40KB"}  # one fixture has an index
SCALE = 0.35  # standard deviation of the weights; biases and norms have their own
# Gemma multiplies embeddings by sqrt(hidden); larger ones would drown the layers.
GEMMA_EMBEDDING_SCALE = 0.12

COMMON = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
# The part of a DeepSeek that V2 and V3 have in common. Logits must feel every part: a norm
# epsilon far from that of the latents' own norms, and two unequal factors of YaRN.
DEEPSEEK = COMMON | dict(
    num_hidden_layers=3,
    num_key_value_heads=4,
    first_k_dense_replace=1,
    rms_norm_eps=1e-2,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=12,
    n_routed_experts=8,
    moe_intermediate_size=8,
    rope_parameters=dict(
        rope_type="yarn",
        rope_theta=1e3,
        factor=4.0,
        beta_fast=6,
        beta_slow=1,
        mscale=1.0,
        mscale_all_dim=0.7,
        original_max_position_embeddings=32,
    ),
)
GEMMA = COMMON | dict(head_dim=8, query_pre_attn_scalar=12, sliding_window=WINDOW)
CONFIGS = {
    "llama2": (transformers.LlamaConfig, COMMON | dict(num_key_value_heads=4)),
    "llama3": (
        transformers.LlamaConfig,
        COMMON
        | dict(
            head_dim=16,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=5e3,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
    ),
    "llama_mqa": (
        transformers.LlamaConfig,
        COMMON
        | dict(
            num_key_value_heads=1,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0),
        ),
    ),
    "mistral": (transformers.MistralConfig, COMMON | dict(sliding_window=WINDOW)),
    "qwen2": (
        transformers.Qwen2Config,
        COMMON
        | dict(
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=WINDOW,
            max_window_layers=1,
        ),
    ),
    "qwen3": (
        transformers.Qwen3Config,
        COMMON | dict(head_dim=16, tie_word_embeddings=True),
    ),
    "gemma2": (
        transformers.Gemma2Config,
        GEMMA
        | dict(
            num_hidden_layers=3,
            attn_logit_softcapping=3.0,  # low enough to bend these small logits
            final_logit_softcapping=2.0,
        ),
    ),
    "gemma3": (
        transformers.Gemma3TextConfig,
        GEMMA
        | dict(
            num_hidden_layers=7,
            intermediate_size=24,
            num_attention_heads=2,
            num_key_value_heads=1,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", rope_theta=1e6, factor=4.0),
                sliding_attention=dict(rope_type="default", rope_theta=1e4),
            ),
        ),
    ),
    "llama_yarn": (
        transformers.LlamaConfig,
        COMMON
        | dict(
            head_dim=16,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=1e3,
                factor=8.0,
                beta_fast=8,
                truncate=False,
                original_max_position_embeddings=64,
            ),
        ),
    ),
    "deepseek_v2": (
        transformers.DeepseekV2Config,
        DEEPSEEK
        | dict(
            first_k_dense_replace=2,
            attention_bias=True,
            q_lora_rank=12,
            n_shared_experts=2,
            num_experts_per_tok=3,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=1.5,
        ),
    ),
    "deepseek_v2_lite": (
        transformers.DeepseekV2Config,
        DEEPSEEK
        | dict(
            num_hidden_layers=2,
            first_k_dense_replace=0,
            q_lora_rank=None,
            n_shared_experts=1,
            num_experts_per_tok=2,
            topk_method="greedy",
            rope_parameters=dict(rope_type="default", rope_theta=1e4),
        ),
    ),
    "deepseek_v3": (
        transformers.DeepseekV3Config,
        DEEPSEEK
        | dict(
            q_lora_rank=12,
            n_shared_experts=1,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.5,
            num_mtp_layers=0,
        ),
    ),
    "opt": (
        transformers.OPTConfig,
        dict(
            vocab_size=96,
            hidden_size=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=128,
        ),
    ),
    "gpt2": (
        transformers.GPT2Config,
        dict(
            vocab_size=96,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}


def make_model(name: str, seed: int) -> torch.nn.Module:
    """A model whose every parameter is random, biases and norms included."""
    config_class, fields = CONFIGS[name]
    model = AutoModelForCausalLM.from_config(
        config_class(**fields), attn_implementation="eager", dtype=torch.float32
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    is_gemma = name.startswith("gemma")
    with torch.no_grad():
        for path, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim > 1:
                drowns = is_gemma and "embed_tokens" in path
                weight.copy_((GEMMA_EMBEDDING_SCALE if drowns else SCALE) * noise)
            elif "norm" in path or ".ln_" in path:
                is_scale = path.endswith("weight") and not is_gemma
                weight.copy_((1.0 if is_scale else 0.0) + 0.2 * noise)
            else:
                weight.copy_(0.3 * noise)
        for path, bias in model.named_buffers():
            if path.endswith("e_score_correction_bias"):
                bias.copy_(0.3 * torch.randn(bias.shape, generator=generator))
    return model


@torch.no_grad()
def all_logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """[T, V], computed from the whole sequence without a cache."""
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def expected_of(model: torch.nn.Module, seed: int) -> dict:
    """Greedy continuation of a random prompt; no token is banned."""
    generator = torch.Generator().manual_seed(seed + 1)
    vocab_size = model.config.vocab_size
    prompt = torch.randint(3, vocab_size, (NUM_PROMPT,), generator=generator).tolist()
    ids, gap = list(prompt), float("inf")
    for _ in range(NUM_GREEDY):
        best = all_logits(model, ids)[-1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    logits = all_logits(model, ids)
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "seed": seed,
        "min_top2_gap": gap,
        "prompt_ids": prompt,
        "greedy_ids": ids[NUM_PROMPT:],
        "positions": list(POSITIONS),
        "logits": [[round(float(x), 6) for x in logits[i]] for i in POSITIONS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).resolve().parent.parent / "tests/fixtures/hf"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("names", nargs="*", default=list(CONFIGS))
    args = parser.parse_args()
    for name in args.names:
        for seed in range(100):
            model = make_model(name, seed)
            expected = expected_of(model, seed)
            distinct = len(set(expected["greedy_ids"]))
            if expected["min_top2_gap"] > MIN_GAP and distinct >= MIN_DISTINCT:
                break
        else:
            raise SystemExit(f"{name}: no seed gives a gap above {MIN_GAP}; raise SCALE.")
        folder = args.out / name
        model.save_pretrained(folder, max_shard_size=MAX_SHARD_SIZE.get(name, "5GB"))
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        for file in folder.glob("*.safetensors"):
            file.chmod(0o644)
        size = sum(file.stat().st_size for file in folder.iterdir())
        largest = max(abs(x) for row in expected["logits"] for x in row)
        print(
            f"{name:10} seed {seed:2}  gap {expected['min_top2_gap']:.4f}  {distinct} "
            f"distinct tokens  |logit| <= {largest:.1f}  {size / 1000:.0f} kB"
        )


if __name__ == "__main__":
    main()
