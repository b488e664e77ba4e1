"""The storage contract, in short form, on servers with users' settings.

The tests come from the conformance suite: the main verbs once, and concurrent operations in several threads, where
isolation levels and time limits matter.
"""

from __future__ import annotations

from tests.backends import (
    test_beat,
    test_cancel,
    test_claim,
    test_enqueue,
    test_expiry_and_promotion,
    test_fence,
    test_graph,
    test_graph_races,
    test_leases,
    test_limits,
    test_limits_races,
    test_lists_and_stats,
    test_progress_and_logs,
    test_prune,
    test_queues,
    test_rescue,
    test_retry_and_delete,
    test_schedules,
    test_settle,
    test_unique,
    test_unique_conflicts,
)
from tests.settings import places

VERBS = (
    test_enqueue.test_every_field_reads_back_equal,
    test_claim.test_a_claim_brings_all_that_running_the_job_needs,
    test_settle.test_an_exchange_settles_promotes_expires_and_claims_at_once,
    test_settle.test_every_attempt_is_recorded_but_the_completed_one_that_the_row_shows,
    test_settle.test_several_refused_outcomes_are_all_found,
    test_progress_and_logs.test_lines_stay_in_the_order_they_were_written,
    test_beat.test_a_beat_tells_what_the_worker_has_running,
    test_beat.test_a_worker_that_leaves_is_stopped_once,
    test_rescue.test_all_running_jobs_of_a_dead_worker_come_back_and_no_others,
    test_cancel.test_each_job_of_a_batch_has_its_own_answer,
    test_retry_and_delete.test_only_those_that_ended_among_many_start_over,
    test_expiry_and_promotion.test_an_exchange_promotes_and_claims_what_became_due,
    test_prune.test_a_workflow_larger_than_one_look_shows_goes_in_parts,
    test_lists_and_stats.test_each_filter_alone,
    test_lists_and_stats.test_throughput_counts_what_ended_within_the_window,
    test_unique.test_a_batch_frees_expired_windows_and_meets_those_still_open,
    test_graph.test_a_parent_started_over_brings_its_cancelled_descendants_back,
    test_schedules.test_a_schedule_reads_back_equal,
    test_schedules.test_all_missed_slots_fire_in_one_go,
    test_queues.test_a_resumed_queue_is_claimed_from_again,
    test_limits.test_no_more_jobs_of_a_task_run_than_its_limit,
    test_limits.test_running_jobs_count_from_the_moment_at_which_a_limit_is_set,
    test_limits.test_no_more_attempts_start_in_a_period_than_its_rate,
    test_limits.test_each_key_has_its_own_rate,
    test_limits.test_a_rate_that_is_lifted_and_set_back_counts_what_started_before,
)
# Concurrency, or large operations.
CROWDS = (
    test_enqueue.test_five_thousand_jobs_go_in_with_one_call,
    test_claim.test_racing_workers_share_the_jobs_and_nobody_gets_one_twice,
    test_fence.test_where_settle_and_rescue_race_each_job_has_one_outcome_and_the_worker_knows_which,
    test_rescue.test_racing_rescuers_count_each_crash_once,
    test_leases.test_of_racing_takers_one_gets_the_duty,
    test_queues.test_once_a_pause_has_returned_no_racing_worker_claims,
    test_schedules.test_of_eight_that_fire_one_slot_exactly_one_wins,
    test_graph_races.test_children_enqueued_while_their_parent_settles_are_freed,
    test_graph_races.test_a_child_enqueued_while_its_parent_is_cancelled_or_expires_is_cancelled_too,
    test_graph_races.test_the_parents_of_one_child_settle_at_once_and_free_it_once,
    test_limits_races.test_of_two_claims_at_the_same_moment_one_takes_the_last_slot,
    test_limits_races.test_a_claim_sees_what_was_claimed_before_it_had_the_lock,
    test_limits_races.test_two_workers_are_never_over_and_lose_nothing,
)
# They read the tables, or lock a row, on a connection that needs more than the user's address.
WITH_RAW_SQL = (
    test_queues.test_a_pause_waits_for_a_claim_under_way,
    test_settle.test_an_outcome_whose_row_somebody_holds_is_written_later_and_never_dropped,
    test_unique_conflicts.test_many_that_replace_one_job_at_once_leave_it_whole,
    test_graph_races.test_a_parent_settled_beside_an_open_enqueue_frees_the_child_that_was_committed,
    test_graph_races.test_a_parent_cancelled_beside_an_open_enqueue_takes_the_child_with_it,
)

SETTINGS = {
    **dict.fromkeys(CROWDS, (*places.CONTENDED, *places.POOLED)),
    **dict.fromkeys(WITH_RAW_SQL, places.CONTENDED),
}

# pytest finds them under their names, as if they were defined here.
globals().update({each.__name__: each for each in (*VERBS, *CROWDS, *WITH_RAW_SQL)})
