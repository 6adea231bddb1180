import math

import pytest

from paxkv.policies.naming import policy_named

OFFERED = {"newest": max, "fewest_outputs": min}


def named(name):
    return policy_named(name, OFFERED, "victim policy")


def test_offered_policies_go_by_their_names():
    assert named("newest") is max


def test_others_go_by_the_path_of_a_module_or_of_a_file(tmp_path):
    assert named("math:floor") is math.floor
    assert named("pathlib:Path.joinpath").__name__ == "joinpath"
    file = tmp_path / "mine.py"
    file.write_text("def oldest(candidates):\n    return candidates[0]\n")
    assert named(f"{file}:oldest")([3, 4]) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "newst",
            r"victim policy 'newst' is unknown \(did you mean 'newest'\?\); use one ",
        ),
        ("", "victim policy '' is unknown; use one of newest, fewest_outputs"),
        ("no_such.module:policy", "'no_such.module' cannot be imported, ModuleNotFoundErr"),
        (":policy", "'' cannot be imported"),
        ("no/such/file.py:policy", "FileNotFoundError"),
        ("math:flor", r"math has no 'flor' \(did you mean 'floor'\?\)"),
        ("math:", "math has no ''"),
        ("math:pi", "is a float, which cannot be called"),
    ],
)
def test_the_message_says_what_is_wrong_and_what_is_offered(name, message):
    with pytest.raises(ValueError, match=message):
        named(name)


def test_an_error_of_the_imported_code_is_named(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    with pytest.raises(ValueError, match="ZeroDivisionError: division by zero"):
        named(f"{file}:policy")
