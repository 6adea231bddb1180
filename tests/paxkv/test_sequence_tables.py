import numpy as np
import pytest

from paxkv.sequence_tables import SequenceTables


def make_tables(rows=2, max_context=8, widths=(4,)):
    return SequenceTables(rows, max_context, widths)


def test_row_holds_known_tokens_and_blocks_in_order():
    tables = make_tables()
    row = tables.acquire()
    tables.write_known(row, (5, 6, 7), [8])
    tables.append(0, row, [3])
    tables.append(0, row, [1, 2])
    assert tables.tokens[row].tolist() == [5, 6, 7, 8, 0, 0, 0, 0, 0]
    assert tables.num_prompt_tokens[row] == 3
    assert tables.num_tokens[row] == 4
    assert tables.blocks(0, row) == [3, 1, 2]
    assert tables.block_tables[0][row].tolist() == [3, 1, 2, 0]


def test_released_row_is_zero_and_comes_again():
    tables = make_tables()
    row = tables.acquire()
    tables.write_known(row, (5, 6, 7), [])
    tables.append(0, row, [3])
    tables.num_computed[row] = 3
    tables.clear_blocks(0, row)
    tables.release(row)
    arrays = (tables.tokens, tables.num_tokens, tables.num_computed)
    assert not any(array.any() for array in (*arrays, *tables.block_tables))
    assert tables.acquire() == row


def test_rows_are_counted():
    tables = make_tables(rows=2)
    rows = {tables.acquire(), tables.acquire()}
    assert rows == {0, 1}
    with pytest.raises(ValueError, match="all 2 rows are taken"):
        tables.acquire()
    tables.release(0)
    with pytest.raises(ValueError, match="released twice"):
        tables.release(0)


def test_release_with_blocks_would_leak_them():
    tables = make_tables()
    row = tables.acquire()
    tables.append(0, row, [1])
    with pytest.raises(AssertionError, match="leak"):
        tables.release(row)


def test_each_group_has_its_own_table():
    tables = make_tables(widths=(4, 2))
    row = tables.acquire()
    tables.append(0, row, [1, 2, 3])
    tables.append(1, row, [7])
    assert tables.blocks(0, row) == [1, 2, 3]
    assert tables.blocks(1, row) == [7]
    with pytest.raises(AssertionError, match="3 blocks in a table of 2"):
        tables.append(1, row, [8, 9])


def test_table_bytes_count_tables_and_their_lengths():
    tables = make_tables(rows=2, max_context=100, widths=(4, 3))
    assert tables.table_bytes == 4 * (2 * (4 + 3) + 2 * 2)
    assert all(array.dtype == np.int32 for array in tables.block_tables)


def test_a_fork_knows_the_same_tokens_but_has_no_blocks():
    tables = make_tables(rows=2)
    row, child = tables.acquire(), tables.acquire()
    tables.write_known(row, (5, 6, 7), [8])
    tables.append(0, row, [3, 1])
    tables.num_computed[row] = 3
    tables.first_write[row] = 2
    tables.fork(row, child)
    arrays = (
        tables.tokens,
        tables.num_prompt_tokens,
        tables.num_tokens,
        tables.num_computed,
        tables.first_write,
    )
    assert all((array[row] == array[child]).all() for array in arrays)
    assert tables.blocks(0, child) == []
    tables.append_token(child, 9)  # and each goes on alone
    assert tables.tokens[row].tolist() == [5, 6, 7, 8, 0, 0, 0, 0, 0]
    assert tables.tokens[child].tolist() == [5, 6, 7, 8, 9, 0, 0, 0, 0]
    assert (tables.num_tokens[row], tables.num_tokens[child]) == (4, 5)


def test_blocks_behind_the_window_leave_the_table_but_not_their_place():
    tables = make_tables(widths=(4, 4))
    row = tables.acquire()
    for group in range(2):
        tables.append(group, row, [3, 1, 2])
    assert tables.leave_behind(1, row, 2) == [3, 1]
    assert tables.block_tables[1][row].tolist() == [0, 0, 2, 0]
    assert tables.blocks(1, row) == [2]
    assert tables.num_blocks[1][row] == 3  # positions keep their index
    tables.append(1, row, [9])
    assert tables.blocks(1, row) == [2, 9]
    assert tables.leave_behind(1, row, 3) == [2]  # only what is new
    assert tables.blocks(0, row) == [3, 1, 2]
    for group in range(2):
        tables.clear_blocks(group, row)
    assert not tables.num_behind[1].any()
    tables.release(row)


def test_released_row_forgets_where_it_may_write():
    tables = make_tables()
    row = tables.acquire()
    tables.first_write[row] = 4
    tables.release(row)
    assert tables.first_write[tables.acquire()] == 0
