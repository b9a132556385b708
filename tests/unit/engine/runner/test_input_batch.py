"""Laying sequences out as one ragged batch."""

import numpy as np
from support.builders.engine import GREEDY
from triptych_engine.runner.input_batch import InputBatch
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput


def a_sequence(request_id: str, token_ids: list[int], block_ids: list[int], num_computed_tokens: int = 0) -> NewSequence:
    return NewSequence(request_id, token_ids, len(token_ids), num_computed_tokens, block_ids, GREEDY)


def test_gather_lays_out_tokens_positions_and_slots():
    batch = InputBatch(4, 32, 4)
    batch.add(a_sequence("a", [10, 11, 12, 13, 14], [7, 2]))
    batch.add(a_sequence("b", [20, 21, 22, 23, 24, 25], [5, 6], num_computed_tokens=4))
    inputs = batch.gather(SchedulerOutput(num_scheduled_tokens={"b": 2, "a": 3}))
    assert inputs.token_ids.tolist() == [24, 25, 10, 11, 12]
    assert inputs.positions.tolist() == [4, 5, 0, 1, 2]
    assert inputs.metadata.slots.tolist() == [6 * 4, 6 * 4 + 1, 28, 29, 30]
    assert inputs.metadata.query_start_loc.tolist() == [0, 2, 5]
    assert inputs.metadata.seq_lens.tolist() == [6, 3]
    assert inputs.samples.tolist() == [True, False]


def test_progress_and_sampled_tokens_carry_over():
    batch = InputBatch(1, 32, 4)
    batch.add(a_sequence("a", [1, 2, 3], [0]))
    batch.advance(batch.gather(SchedulerOutput(num_scheduled_tokens={"a": 3})))
    batch.learn_tokens(batch.expect_tokens(np.array([0])), np.array([9]))
    inputs = batch.gather(SchedulerOutput(num_scheduled_tokens={"a": 1}))
    assert inputs.token_sources is None
    assert (inputs.token_ids.tolist(), inputs.positions.tolist(), inputs.samples.tolist()) == ([9], [3], [True])


def test_rows_are_used_again():
    batch = InputBatch(1, 32, 4)
    batch.add(a_sequence("a", [1], [3]))
    assert batch.remove("a") == 0
    assert batch.remove("a") is None
    batch.add(a_sequence("b", [5, 6], [1]))
    assert batch.gather(SchedulerOutput(num_scheduled_tokens={"b": 2})).metadata.slots.tolist() == [4, 5]


def test_blocks_are_added_as_a_sequence_grows():
    batch = InputBatch(1, 32, 2)
    batch.add(a_sequence("a", [1, 2, 3], [4]))
    batch.add_blocks(0, [9])
    assert batch.gather(SchedulerOutput(num_scheduled_tokens={"a": 3})).metadata.block_table.tolist() == [[4, 9]]


def test_a_token_that_only_the_device_knows_is_named_by_its_row():
    batch = InputBatch(4, 32, 4)
    rows = np.array([batch.add(a_sequence("a", [1], [0])), batch.add(a_sequence("b", [5, 6], [1]))])
    batch.advance(batch.gather(SchedulerOutput(num_scheduled_tokens={"a": 1, "b": 1})))
    expected = batch.expect_tokens(rows[:1])
    both = SchedulerOutput(num_scheduled_tokens={"b": 1, "a": 1})
    inputs = batch.gather(both)
    assert inputs.token_sources is not None
    assert inputs.token_sources.tolist() == [-1, rows[0]]
    assert inputs.token_ids.tolist() == [6, 0]
    assert inputs.samples.tolist() == [True, True]
    batch.learn_tokens(expected, np.array([7]))
    inputs = batch.gather(both)
    assert inputs.token_sources is None
    assert inputs.token_ids.tolist() == [6, 7]


def test_what_is_learned_too_late_does_not_reach_the_next_sequence_in_the_row():
    batch = InputBatch(1, 32, 4)
    batch.add(a_sequence("a", [1, 2], [0]))
    expected = batch.expect_tokens(np.array([0]))
    batch.remove("a")
    batch.add(a_sequence("b", [5, 6, 8, 9], [1]))
    batch.learn_tokens(expected, np.array([7]))
    inputs = batch.gather(SchedulerOutput(num_scheduled_tokens={"b": 4}))
    assert inputs.token_ids.tolist() == [5, 6, 8, 9]
    assert inputs.token_sources is None
