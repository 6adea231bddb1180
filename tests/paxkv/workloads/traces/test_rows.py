from paxkv.workloads.traces.rows import approximate_tokens


def test_tokens_are_a_quarter_of_the_bytes():
    assert approximate_tokens("") == 0
    assert approximate_tokens("abcd") == 1
    assert approximate_tokens("abcde") == 2
    assert approximate_tokens("日本語") == 3  # 9 bytes
    assert approximate_tokens("\ud800") == 1  # no bytes of UTF-8
