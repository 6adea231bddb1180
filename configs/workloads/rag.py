"""Questions about documents that were looked up: four of a thousand, some far more often.

100 tokens of instructions, four documents of 512 tokens by Zipf's law, the most popular one
first, and a question of 40 tokens; 200 tokens of answer. The numbers are ours; the order of
documents is that which shares prefixes best (as in RAGCache, Jin et al., arXiv 2404.12457,
whose cache is a tree of documents).
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    return config_dict.create(
        num_requests=500,
        seed=0,
        arrival="poisson",
        rate_per_s=1.0,
        structure="rag",
        shared_tokens=100,
        num_documents=1_000,
        documents_per_request=4,
        document_tokens=512,
        popularity_exponent=1.0,
        lengths="lognormal",
        input_tokens=40,
        input_sigma=0.5,
        output_tokens=200,
        output_sigma=0.5,
        too_long="scale",
        scale_from_tokens=4096,
    )
