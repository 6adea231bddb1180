"""A step's seconds by a roofline: one pass over the weights, attention, moves, the host.

Each part is bound by the device's flops or by its memory. Weights are read once for all
tokens of a step; activations are small beside them and left out. The parts follow Vidur's
split (arXiv 2405.05465, §4) with analytical times in place of profiles.
"""

import bisect

from paxkv.checks import integer_in, named
from paxkv.simulation.chips import Chip
from paxkv.simulation.hardware import (
    HardwareConfig,
    cache_share,
    efficiency_of,
    published_chip,
)
from paxkv.simulation.model_shape import ITEM_BYTES, ModelShape
from paxkv.simulation.profiles import ATTENTION_KERNELS, Efficiency
from paxkv.simulation.work import StepSeconds, StepWork

ACTIVATION_BYTES = 2  # of a number between layers


def kernel_share(attention_kernel: str, block_size: int) -> float:
    """Of the decode kernel's best efficiency, what it has at a block size."""
    table = ATTENTION_KERNELS[attention_kernel]
    sizes = [size for size, _ in table]
    return table[bisect.bisect_right(sizes, block_size) - 1][1]


class RooflineModel:
    """Seconds of steps of one model on one tensor-parallel group of chips.

    All that does not change from step to step is computed once.
    """

    def __init__(
        self,
        hardware: HardwareConfig,
        shape: ModelShape,
        *,
        block_size: int,
        kv_dtype: str,
        profile: str,
    ):
        """Raises ValueError: the profile, the dtype or the block size is not offered, or
        the chip has no figures."""
        named("block_size", block_size, integer_in(1, None, "use ≥ 1 token"))
        chip, reached = published_chip(hardware), efficiency_of(hardware, profile)
        self.source = reached.source
        num_chips = hardware.num_chips
        flops_per_s = chip.flops_per_s(shape.weights_dtype) * reached.product
        self._linear_s_per_token = 2 * shape.active_parameters / num_chips / flops_per_s
        self._set_weights(shape, chip, reached, num_chips)
        kv_bytes = shape.kv_bytes_per_token(kv_dtype)
        self._set_attention(shape, chip, reached, kv_bytes, num_chips, block_size)
        self._set_moves(shape, chip, reached, kv_bytes, num_chips, block_size)
        self._host_s, self._host_s_per_seq = reached.host_s_per_step, reached.host_s_per_seq
        # two all-reduces a layer, each a ring (Megatron-LM, arXiv 1909.08053, §3)
        reduces = 2 * shape.num_layers if num_chips > 1 else 0
        sent = 2 * (num_chips - 1) / num_chips * shape.hidden_size * ACTIVATION_BYTES
        self._collective_s = reduces * reached.collective_latency_s
        self._collective_s_per_token = (
            reduces * sent / (chip.link_bytes_per_s * reached.link)
        )

    def _set_weights(
        self, shape: ModelShape, chip: Chip, reached: Efficiency, num_chips: int
    ) -> None:
        rate = chip.memory_bytes_per_s * reached.weights_read * num_chips
        item_bytes = ITEM_BYTES[shape.weights_dtype]
        expert_bytes = shape.expert_parameters * item_bytes
        self._experts_s = expert_bytes / rate
        self._dense_s = (shape.num_parameters * item_bytes - expert_bytes) / rate
        # share of the experts of a layer that a token does not need
        self._unused = 1 - shape.experts_per_token / max(shape.num_experts, 1)

    def _set_attention(
        self,
        shape: ModelShape,
        chip: Chip,
        reached: Efficiency,
        kv_bytes: tuple[int, ...],
        num_chips: int,
        block_size: int,
    ) -> None:
        share = cache_share(shape, num_chips)
        # the cache is no product of weights: its dtype decides bytes, not flops
        flops_per_s = chip.bfloat16_flops_per_s * num_chips
        by_kernel = kernel_share(reached.attention_kernel, block_size)
        read_rate = chip.memory_bytes_per_s * reached.decode_attention
        self._read_s = tuple(n * share / (read_rate * by_kernel) for n in kv_bytes)
        self._prefill_read_s = tuple(n * share / read_rate for n in kv_bytes)
        self._decode_pair_s = tuple(
            flops / (flops_per_s * reached.product)
            for flops in shape.flops_per_pair(is_decode=True)
        )
        self._prefill_pair_s = tuple(
            flops / (flops_per_s * reached.prefill_attention)
            for flops in shape.flops_per_pair(is_decode=False)
        )

    def _set_moves(
        self,
        shape: ModelShape,
        chip: Chip,
        reached: Efficiency,
        kv_bytes: tuple[int, ...],
        num_chips: int,
        block_size: int,
    ) -> None:
        # moves do not tell their group: a block has the mean size. Chips move their
        # shares at the same time.
        share = cache_share(shape, num_chips)
        block_bytes = sum(kv_bytes) / len(kv_bytes) * block_size * share
        copies = shape.copies_per_block
        link = chip.host_link_bytes_per_s
        self._swap_out_s = (
            block_bytes / (reached.swap_out_bytes_per_s or link)
            + copies * reached.swap_out_s_per_copy
        )
        self._swap_in_s = (
            block_bytes / (reached.swap_in_bytes_per_s or link)
            + copies * reached.swap_in_s_per_copy
        )
        self._load_s = block_bytes * num_chips / reached.disk_bytes_per_s + self._swap_in_s
        self._copy_s = 2 * block_bytes / chip.memory_bytes_per_s
        self._launch_s = reached.copy_launch_s

    def _linear_s(self, num_tokens: int) -> float:
        """Of all products with weights of a step."""
        if not num_tokens:
            return 0.0
        read_s = self._dense_s
        if self._experts_s:
            # tokens choose experts evenly, so each misses one with the same chance
            read_s += self._experts_s * (1 - self._unused**num_tokens)
        return max(num_tokens * self._linear_s_per_token, read_s)

    def seconds(self, work: StepWork) -> StepSeconds:
        """Where the time of a step goes."""
        num_decodes, num_prefills = work.num_decode_tokens, work.num_prefill_tokens
        decode_s = self._linear_s(num_decodes)
        prefill_s = 0.0
        if num_prefills:
            prefill_s = self._linear_s(num_decodes + num_prefills) - decode_s
            prefill_s += _bound_s(
                work.prefill_pairs,
                self._prefill_pair_s,
                work.prefill_context_tokens,
                self._prefill_read_s,
            )
        if num_decodes:
            decode_s += _bound_s(
                work.decode_context_tokens,
                self._decode_pair_s,
                work.decode_read_tokens,
                self._read_s,
            )
        swap_s = copy_s = communication_s = 0.0
        num_in, num_out = work.num_swapped_in_blocks, work.num_swapped_out_blocks
        if num_in or num_out or work.num_loaded_blocks:
            swap_s = (
                num_in * self._swap_in_s
                + num_out * self._swap_out_s
                + work.num_loaded_blocks * self._load_s
            )
        if work.num_copied_blocks:
            copy_s = work.num_copied_blocks * self._copy_s + self._launch_s
        num_tokens = num_decodes + num_prefills
        if num_tokens and self._collective_s_per_token:
            communication_s = self._collective_s + num_tokens * self._collective_s_per_token
        return StepSeconds(
            decode_s=decode_s,
            prefill_s=prefill_s,
            swap_s=swap_s,
            copy_s=copy_s,
            communication_s=communication_s,
            host_s=self._host_s + self._host_s_per_seq * work.num_seqs,
        )


def _bound_s(
    pairs: tuple[int, ...],
    s_per_pair: tuple[float, ...],
    read: tuple[int, ...],
    s_per_read: tuple[float, ...],
) -> float:
    """Seconds of attention over all groups: of the flops or of the reads of each."""
    total_s = 0.0
    for group, count in enumerate(pairs):
        total_s += max(count * s_per_pair[group], read[group] * s_per_read[group])
    return total_s
