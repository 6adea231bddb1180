import pytest

from paxkv.simulation.model_shape import ModelShape
from tests.priced import CONFIGS, config_tree, shape_of

MODELS = sorted(path.stem for path in (CONFIGS / "models").glob("*.py"))
GIB = 2**30


@pytest.mark.parametrize(
    "model, kv_bytes",
    [
        ("opt_13b", 819_200),
        ("opt_66b", 2_359_296),
        ("opt_175b", 4_718_592),
        ("llama_13b", 819_200),
    ],
)
def test_bytes_per_token_of_the_paper(model, kv_bytes):
    # arXiv 2309.06180, Table 1: 2 x hidden x layers x 2 bytes
    assert shape_of(model).kv_bytes_per_token("bfloat16") == (kv_bytes,)


@pytest.mark.parametrize(
    "model, gib, slots",
    [("opt_13b", 12, 15_728), ("opt_66b", 21, 9_557), ("opt_175b", 264, 60_074)],
)
def test_slots_of_the_paper(model, gib, slots):
    # Table 1 prints 15.7K, 9.7K (which needs 21.3 GiB) and 60.1K
    (per_token,) = shape_of(model).kv_bytes_per_token("bfloat16")
    assert gib * GIB // per_token == slots


@pytest.mark.parametrize(
    "model, giga_parameters",
    [
        ("opt_13b", 12.85),
        ("opt_66b", 65.7),
        ("opt_175b", 174.6),
        ("llama_13b", 13.0),
        ("llama3_8b", 8.03),
        ("llama3_70b", 70.6),
        ("qwen3_8b", 8.2),
        ("qwen3_32b", 32.8),
        ("gemma3_27b", 27.0),
        ("mistral_7b", 7.24),
        ("deepseek_v3", 671.0),
    ],
)
def test_parameters_as_published(model, giga_parameters):
    assert shape_of(model).num_parameters / 1e9 == pytest.approx(giga_parameters, rel=0.006)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "deepseek_v3"])
def test_layers_alone_explain_most_parameters(model):
    """Counted again from the sizes: attention, MLP and embeddings, without norms."""
    shape = shape_of(model)
    heads, kv_heads = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    num_mlp = 2 if model.startswith("opt") else 3
    layer = shape.hidden_size * (2 * heads + 2 * kv_heads)
    layer += num_mlp * shape.hidden_size * shape.intermediate_size
    tied = model.startswith(("opt", "gemma"))
    tables = (1 if tied else 2) * shape.vocab_size * shape.hidden_size
    counted = shape.num_layers * layer + tables
    assert shape.num_parameters == pytest.approx(counted, rel=0.003)


@pytest.mark.parametrize("model", MODELS)
def test_preset_is_named_as_its_file(model):
    assert shape_of(model).name == model


def test_shipped_model_agrees_with_its_checkpoint():
    import json

    from paxkv.results import CHECKOUT

    path = CHECKOUT / "paxkv" / "assets" / "recall" / "config.json"
    saved = json.loads(path.read_text("utf-8"))
    shape = config_tree("models", "recall")
    same = set(shape) & set(saved)
    assert {key: shape[key] for key in same} == {key: saved[key] for key in same}
    assert "num_kv_heads" in same and shape_of("recall").kv_bytes_per_token("float32") == (
        2048,
    )


def test_quantised_cache_has_a_scale_per_row():
    shape = shape_of("llama3_8b")  # 32 layers, 8 kv heads of 128
    assert shape.kv_bytes_per_token("bfloat16") == (32 * 8 * 2 * 128 * 2,)
    for dtype in ("int8", "float8_e4m3fn"):
        assert shape.kv_bytes_per_token(dtype) == (32 * 8 * 2 * (128 + 4),)
    assert shape.kv_bytes_per_token("float32") == (32 * 8 * 2 * 128 * 4,)


def test_windowed_layers_are_a_group_of_their_own():
    gemma, mistral = shape_of("gemma3_27b"), shape_of("mistral_7b")
    assert gemma.layers_per_group == (10, 52)
    assert gemma.group_windows == (None, 1024)
    assert gemma.kv_bytes_per_token("bfloat16") == (10 * 8192, 52 * 8192)
    assert gemma.copies_per_block == 62  # 2 of each layer, over two groups
    assert mistral.layers_per_group == (32,)
    assert mistral.group_windows == (4096,)


def test_latents_are_stored_once():
    shape = shape_of("deepseek_v3")
    # arXiv 2412.19437: 512 + 64 numbers per layer
    assert shape.kv_bytes_per_token("bfloat16") == (61 * 576 * 2,)
    assert shape.kv_bytes_per_token("int8") == (61 * (576 + 4),)
    assert shape.copies_per_block == 61
    assert shape.cached_heads == 1
    assert shape.flops_per_pair(is_decode=True) == (61 * 2 * 128 * (576 + 512),)
    assert shape.flops_per_pair(is_decode=False) == (61 * 2 * 128 * (192 + 128),)


def test_experts_are_what_a_token_skips_and_meets():
    shape = shape_of("deepseek_v3")
    per_expert = 3 * 7168 * 2048
    assert shape.expert_parameters == pytest.approx(58 * 256 * per_expert)
    assert shape.weights_bytes == shape.num_parameters  # float8
    assert shape_of("llama3_8b").expert_parameters == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_kv_heads": 3}, "num_heads=32 must be a multiple of num_kv_heads=3"),
        ({"num_layers": 0}, "num_layers=0 must be >= 1"),
        ({"name": ""}, "name='' is no name"),
        ({"window": 128}, "give both or neither"),
        ({"window": 128, "num_window_layers": 33}, "no more layers than there are"),
        ({"num_active_parameters": 10**9}, "must be below num_parameters"),
        ({"num_experts": 8, "num_active_parameters": 10**9}, "experts_per_token=0 must be"),
        ({"latent_dim": 576}, "belong together"),
        ({"weights_dtype": "int4"}, "weights_dtype='int4' is not offered"),
    ],
)
def test_wrong_shapes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        shape_of("llama3_8b", **changes)


def test_unknown_cache_dtype_is_refused():
    with pytest.raises(ValueError, match="kv_dtype='int4' is not offered"):
        shape_of("opt_13b").kv_bytes_per_token("int4")


def test_needs_its_sizes():
    with pytest.raises(TypeError):
        ModelShape(name="x")  # pyrefly: ignore
