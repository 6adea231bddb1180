"""Times PyTorch's attention over a contiguous cache, in an interpreter that has torch.

Run as a file. Each line of standard input is a JSON object: a problem, to be prepared, or
{"run": true}, answered with the seconds of one call; the first run of a problem warms up.
"""

import importlib
import json
import sys
import time


def prepare(torch, problem):
    """q, k, v of a problem, and whether the mask is causal."""
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[problem["dtype"]]
    queries = problem["context"] if problem["is_prefill"] else 1

    def normal(heads, tokens):
        shape = (problem["batch"], heads, tokens, problem["head_dim"])
        return torch.randn(shape, dtype=dtype)

    kv_heads, context = problem["kv_heads"], problem["context"]
    return (
        normal(problem["num_heads"], queries),
        normal(kv_heads, context),
        normal(kv_heads, context),
        problem["is_prefill"],
    )


def main():
    torch = importlib.import_module("torch")  # only this interpreter has it
    attend = torch.nn.functional.scaled_dot_product_attention
    other = torch.ones(32 * 2**20)
    q = k = v = is_causal = None
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "run" not in request:
            q, k, v, is_causal = prepare(torch, request)
            print(json.dumps({"ready": True}), flush=True)
            continue
        if request.get("cold"):
            other.max()
        with torch.inference_mode():
            start = time.perf_counter()
            attend(q, k, v, is_causal=is_causal, enable_gqa=True)
            print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
