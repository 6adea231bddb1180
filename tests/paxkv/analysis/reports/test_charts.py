"""A figure's values are checked when it is made."""

import pytest

from paxkv.analysis.reports.charts import Series


def test_a_series_has_as_many_of_each():
    with pytest.raises(ValueError, match="has 1 x, 2 y and 1 half widths"):
        Series(label="a", x=(1.0,), y=(1.0, 2.0), half_widths=(None,))
    with pytest.raises(ValueError, match="has no point"):
        Series(label="a", x=(), y=(), half_widths=())
