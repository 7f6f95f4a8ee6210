"""Writes docs/matrix.md: what resumes exactly, for each loop, backend and strategy, and which tests prove it.

    python docs/matrix.py

A row stands here only with the tests that would fail if it were wrong. What has none says "not tested".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_name("matrix.md")

EXACT, PART, NONE = "exact", "in part", "no resume"
RAISES, UNTESTED = "raises", "not tested"


@dataclass(frozen=True)
class Row:
    """What holds for one loop on one backend under one strategy; `tests` are pytest's node ids."""

    backend: str
    strategy: str
    verdict: str
    said: str
    tests: tuple[str, ...] = ()


def of(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{file}::{name}" for name in names)


def backends(*names: str) -> tuple[str, ...]:
    return of("keras/test_backends.py", *names)


def fit(*names: str) -> tuple[str, ...]:
    return of("keras/test_fit.py", *names)


def to_keras(backend: str) -> tuple[str, ...]:
    name = "test_fit_reads_pass_after_pass_and_the_rest_the_first"
    return of("keras/test_to_keras.py", f"{name}[{backend}]")


def iterator(*names: str) -> tuple[str, ...]:
    return of("tensorflow/test_iterator.py", *names)


def loops(*names: str) -> tuple[str, ...]:
    return of("tensorflow/test_loops.py", *names)


def mirrored(*checks: str) -> tuple[str, ...]:
    return of("tensorflow/test_strategies.py", *(f"test_under_a_strategy[{c}]" for c in checks))


def workers(*names: str) -> tuple[str, ...]:
    return of("tensorflow/test_workers.py", *names)


def tf_keras(file: str, *names: str) -> tuple[str, ...]:
    return of(f"tf_keras/test_{file}.py", *names)


def device(framework: str) -> tuple[str, ...]:
    tail = "test_a_run_broken_off_at_any_step_goes_on_with_the_same_tail"
    kinds = ("seekable", "stream")
    return of("test_device.py", *(f"{tail}[{framework}-{kind}]" for kind in kinds))


def broken_off(backend: str) -> tuple[str, ...]:
    return backends(f"test_a_run_broken_off_goes_on_bit_for_bit_on_every_backend[{backend}]")


def killed(backend: str) -> tuple[str, ...]:
    return backends(f"test_a_process_killed_goes_on_as_one_that_was_left_alone[{backend}]")


SAVED_BY_TWO = workers(
    "test_three_workers_go_on_exactly_where_two_had_saved",
    "test_one_process_goes_on_exactly_where_three_workers_had_saved",
)
WHAT_TO_DO = workers(
    "test_when_a_worker_is_killed_the_other_stops_with_an_error_that_says_what_to_do"
)

ROWS: dict[str, tuple[Row, ...]] = {
    "playhead.keras.fit": (
        Row(
            "TensorFlow",
            "none",
            EXACT,
            "losses, logs and weights to the bit, broken off within epochs and at their ends: seekable data "
            "and streams, validation, schedules, accumulated gradients, `steps_per_execution`, `jit_compile`; "
            "after SIGKILL too",
            (
                *fit(
                    "test_a_run_broken_off_goes_on_bit_for_bit",
                    "test_a_stream_of_unknown_length_ends_its_epochs_where_its_passes_end",
                    "test_several_steps_per_execution_are_saved_where_an_execution_ends",
                    "test_a_learning_rate_schedule_goes_on",
                    "test_validation_is_not_skipped_after_a_save_at_the_last_batch",
                ),
                *of(
                    "keras/test_fit_killed.py",
                    "test_a_process_killed_and_told_to_stop_ends_as_one_that_was_left_alone",
                ),
                *broken_off("tensorflow"),
            ),
        ),
        Row(
            "TensorFlow",
            "none, fed by a wrapped `tf.data` pipeline",
            EXACT,
            "after SIGKILL too; by walking, or from tf.data's own iterator state",
            of(
                "tensorflow/test_from_tf.py",
                "test_a_fit_over_tf_data_that_is_killed_twice_ends_as_if_it_was_not",
            ),
        ),
        Row(
            "JAX",
            "none",
            EXACT,
            "the same",
            (*broken_off("jax"), *killed("jax")),
        ),
        Row(
            "torch",
            "none",
            EXACT,
            "the same but for the last two; also what torch's global generator draws, and the buffers of torch "
            "modules",
            (*broken_off("torch"), *killed("torch")),
        ),
        Row("torch", "none, with `jit_compile`", UNTESTED, "torch's compiler is slow"),
        Row(
            "torch",
            "`steps_per_execution` above 1",
            RAISES,
            "`ValueError`, by Keras",
            backends("test_what_keras_cannot_do_on_a_backend_is_said_by_keras"),
        ),
        Row(
            "TensorFlow",
            "OneDevice",
            EXACT,
            "seekable data",
            broken_off("tensorflow"),
        ),
        Row(
            "TensorFlow",
            "Mirrored, as many replicas as before",
            EXACT,
            "what each replica has for itself (batch statistics, sums of metrics) is saved for each; seekable "
            "data and streams",
            (
                *broken_off("tensorflow"),
                *backends("test_keras_on_replicas_is_as_fit_takes_it_to_be"),
            ),
        ),
        Row(
            "TensorFlow",
            "Mirrored, another number of replicas",
            PART,
            "goes on at its step, and warns that weights are not to the bit: sums are formed in another order, "
            "and batch statistics are those of the first replica",
            backends(
                "test_another_number_of_replicas_goes_on_at_the_step_and_says_what_is_not_exact"
            ),
        ),
        Row(
            "TensorFlow",
            "Mirrored, with layers that draw from Keras' global generator, or `gradient_accumulation_steps`",
            RAISES,
            "by Keras and TensorFlow, which cannot do it",
            backends("test_keras_on_replicas_is_as_fit_takes_it_to_be"),
        ),
        Row(
            "TensorFlow",
            "MultiWorkerMirrored, CentralStorage",
            RAISES,
            "`TrainingError`: Keras 3's `fit` does not run there. A custom loop does",
            backends("test_strategies_under_which_nothing_can_be_promised_are_refused"),
        ),
        Row("TensorFlow", "ParameterServer, TPU", UNTESTED, ""),
        Row(
            "JAX",
            "DataParallel, ModelParallel, on the devices of one process",
            EXACT,
            "on as many devices as before",
            broken_off("jax"),
        ),
        Row("JAX", "the same, another number of devices", UNTESTED, ""),
        Row(
            "JAX",
            "several processes",
            RAISES,
            "`TrainingError`: each would write the same checkpoint",
            of("keras/test_fit_refusals.py", "test_jax_in_several_processes_is_refused"),
        ),
        Row(
            "another than wrote the checkpoint",
            "any",
            RAISES,
            "`TrainingChanged`: random layers draw other numbers there",
            tuple(
                name
                for backend in ("jax", "torch")
                for name in backends(
                    f"test_a_checkpoint_of_another_backend_is_refused_naming_both[{backend}]"
                )
            ),
        ),
        Row(
            "NumPy",
            "any",
            RAISES,
            "`TrainingError`: Keras does not train there",
            of("keras/test_fit_refusals.py", "test_a_backend_that_does_not_train_is_refused"),
        ),
    ),
    "Keras' own fit over ds.to_keras()": (
        Row(
            "TensorFlow, JAX, torch",
            "none",
            NONE,
            "each epoch reads the next pass, in its order; nothing is saved. Use `playhead.keras.fit`",
            (*to_keras("tensorflow"), *to_keras("jax"), *to_keras("torch")),
        ),
        Row(
            "TensorFlow",
            "Mirrored",
            NONE,
            "losses and counts of steps are those of one replica (to 3 decimals)",
            to_keras("tensorflow"),
        ),
        Row("TensorFlow", "MultiWorkerMirrored", UNTESTED, ""),
        Row("JAX", "DataParallel, ModelParallel", UNTESTED, ""),
    ),
    "evaluate and predict over ds.to_keras()": (
        Row(
            "TensorFlow, JAX, torch",
            "none",
            EXACT,
            "the first pass, in its order, each time; training in between changes nothing",
            (*to_keras("tensorflow"), *to_keras("jax"), *to_keras("torch")),
        ),
        Row(
            "TensorFlow",
            "Mirrored",
            PART,
            "`predict` gives a row for each example; the values are not compared",
            to_keras("tensorflow"),
        ),
    ),
    "Custom loop in Python": (
        Row(
            "TensorFlow",
            "none",
            EXACT,
            "`tf.train.Checkpoint` and CheckpointManager, `checkpoint_interval`, asynchronous saving, any "
            "read-ahead; after SIGKILL too",
            (
                *iterator(
                    *(
                        "test_a_loop_broken_off_after_step_13_goes_on_where_it_was_saved"
                        f"[False-{prefetch}]"
                        for prefetch in (0, 1, 8)
                    ),
                    "test_an_asynchronous_save_keeps_the_position_of_its_moment",
                    "test_two_iterators_share_a_checkpoint_with_a_model",
                ),
                *loops(
                    "test_the_usual_loop_killed_in_its_second_epoch_goes_on_at_its_last_save",
                ),
            ),
        ),
        Row(
            "TensorFlow",
            "none, by `prefetch_to_device`",
            EXACT,
            "batches and position",
            (
                *device("tensorflow"),
                *of(
                    "tensorflow/test_device.py",
                    "test_batches_lie_on_the_second_device_and_resume_there",
                ),
            ),
        ),
        Row(
            "TensorFlow",
            "OneDevice, Mirrored",
            EXACT,
            "batches and position, on the same and on another number of replicas; asynchronous saving",
            mirrored(
                "a_checkpoint_restores_exactly_on_another_number_of_replicas",
                "each_replica_gets_its_rows_on_its_own_device",
                "all_of_it_may_stand_in_the_scope",
            ),
        ),
        Row(
            "TensorFlow",
            "Mirrored, a model with variables that differ between replicas (BatchNormalization)",
            UNTESTED,
            "the batches are exact; what becomes of such variables is `tf.train.Checkpoint`'s own",
        ),
        Row(
            "TensorFlow",
            "MultiWorkerMirrored",
            EXACT,
            "saved by two workers, resumed by three and by one; where a worker dies the others raise",
            (*SAVED_BY_TWO, *WHAT_TO_DO),
        ),
        Row(
            "TensorFlow",
            "MultiWorkerMirrored, a worker that was not restored, or reads other data",
            RAISES,
            "`CheckpointError` on all of them",
            workers(
                "test_a_worker_that_was_not_restored_is_an_error_on_all_which_names_it",
                "test_a_worker_over_other_data_is_an_error_on_all",
            ),
        ),
        Row(
            "TensorFlow",
            "any, a step that disagrees with the data",
            RAISES,
            "at the first batch after restoring: `CheckpointError`, in a graph within one of TensorFlow's",
            (
                *iterator("test_a_step_that_disagrees_with_the_data_is_an_error"),
                *loops(
                    "test_a_step_that_was_not_saved_with_the_data_stops_the_loop_before_it_trains"
                ),
                *mirrored("a_step_that_disagrees_is_an_error"),
            ),
        ),
        Row(
            "TensorFlow",
            "any, `ds.split(n, i)` under a strategy",
            RAISES,
            "`PipelineError`: it would be split twice",
            (
                *mirrored("wrong_doors_name_the_right_one"),
                *workers("test_what_would_lose_data_under_several_workers_is_refused_on_all"),
            ),
        ),
        Row(
            "TensorFlow",
            "CentralStorage",
            RAISES,
            "`PipelineError`",
            mirrored("wrong_doors_name_the_right_one"),
        ),
        Row("TensorFlow", "ParameterServer, TPU", UNTESTED, ""),
    ),
    "Custom loop in a tf.function": (
        Row(
            "TensorFlow",
            "none",
            EXACT,
            "the same as in Python; traced once; asynchronous saving, after SIGKILL too",
            (
                *iterator(
                    *(
                        "test_a_loop_broken_off_after_step_13_goes_on_where_it_was_saved"
                        f"[True-{prefetch}]"
                        for prefetch in (0, 1, 8)
                    ),
                    "test_a_graph_takes_batches_without_being_traced_again",
                ),
                *loops(
                    "test_an_asynchronous_save_of_a_loop_in_a_graph_holds_the_position_of_its_moment"
                ),
            ),
        ),
        Row(
            "TensorFlow",
            "OneDevice",
            PART,
            "batches come right; a resume is tested in Python only",
            mirrored("one_device_gets_plain_tensors_there"),
        ),
        Row(
            "TensorFlow",
            "Mirrored",
            EXACT,
            "on as many replicas, weights to the bit (a Dense layer, momentum)",
            mirrored(
                "a_loop_in_a_graph_takes_batches_and_ends_with_the_data",
                "a_model_and_its_optimizer_go_on_bit_for_bit",
                "element_spec_is_an_input_signature_and_uneven_batches_are_traced_once",
            ),
        ),
        Row(
            "TensorFlow",
            "MultiWorkerMirrored",
            EXACT,
            "saved by two workers, resumed by three and by one; a loop to the end of the data ends on all",
            (*SAVED_BY_TWO, *workers("test_a_loop_in_a_graph_ends_on_all_workers_with_the_data")),
        ),
        Row(
            "TensorFlow",
            "none, over `ds.to_tf()`",
            NONE,
            "each loop over it reads the next pass",
            loops(
                "test_a_loop_over_to_tf_gives_the_next_pass_each_time[False]",
                "test_a_loop_over_to_tf_gives_the_next_pass_each_time[True]",
            ),
        ),
        Row(
            "TensorFlow",
            "none, a plain `ds.iterator()` or `prefetch_to_device` in the graph",
            RAISES,
            "`WrongDoor`: its first batch would be built in",
            (
                *iterator("test_a_plain_iterator_inside_a_graph_names_the_right_one"),
                *of(
                    "tensorflow/test_device.py",
                    "test_inside_a_graph_it_is_refused_and_nothing_is_taken",
                ),
            ),
        ),
        Row(
            "TensorFlow",
            "any, `next(it)` inside `strategy.run`",
            RAISES,
            "`WrongDoor`: each replica would take a whole batch",
            mirrored("wrong_doors_name_the_right_one"),
        ),
    ),
    "distribute_datasets_from_function(dataset_fn(ds, step=...))": (
        Row(
            "TensorFlow",
            "Mirrored",
            EXACT,
            "batches and position, on the same and on another number of replicas; of a stream, for the last "
            "1024 steps that TensorFlow read",
            mirrored(
                "dataset_fn_gives_each_replica_its_part_and_saves_what_was_trained",
                "dataset_fn_over_a_stream_saves_the_cursor_of_the_trained_step",
            ),
        ),
        Row(
            "TensorFlow",
            "MultiWorkerMirrored",
            EXACT,
            "on as many workers as before",
            workers("test_dataset_fn_gives_each_worker_its_part_and_goes_on_where_it_was_saved"),
        ),
        Row(
            "TensorFlow",
            "any, saved without `step=`",
            RAISES,
            "`CheckpointError`: TensorFlow reads ahead, and only the loop knows what was trained",
            mirrored(
                "dataset_fn_without_a_step_raises_when_saved_and_reads_pass_after_pass",
                "dataset_fn_never_begins_anew_unasked",
            ),
        ),
        Row("TensorFlow", "OneDevice", UNTESTED, ""),
        Row(
            "TensorFlow",
            "MultiWorkerMirrored, `experimental_distribute_dataset(ds.to_tf())` in its place",
            NONE,
            "every row once; unseeded random operations raise `PipelineError`",
            workers(
                "test_a_plain_tf_dataset_that_tensorflow_distributes_loses_no_rows",
                "test_what_would_lose_data_under_several_workers_is_refused_on_all",
            ),
        ),
    ),
    "playhead.tf_keras.fit": (
        Row(
            "TensorFlow",
            "none",
            EXACT,
            "losses, logs and weights to the bit: seekable data and streams, validation, schedules, "
            "`steps_per_execution`, the usual callbacks",
            tf_keras(
                "fit",
                "test_a_run_is_the_same_wherever_it_is_broken_off",
                "test_validation_follows_an_epoch_whose_last_step_was_the_last_that_was_taken",
                "test_several_outputs_metrics_averaged_weights_and_a_schedule_come_back",
                "test_steps_per_execution_that_does_not_divide_an_epoch_and_an_older_optimizer_come_back",
                "test_a_stream_needs_steps_per_epoch_and_goes_on_in_the_middle_of_its_second_pass",
                "test_what_the_usual_callbacks_know_comes_back",
            ),
        ),
        Row(
            "TensorFlow",
            "Mirrored, as many replicas as before",
            EXACT,
            "to the bit; what each replica has for itself is saved for each",
            tf_keras(
                "replicas", "test_a_run_on_two_replicas_broken_off_three_times_is_the_unbroken_one"
            ),
        ),
        Row(
            "TensorFlow",
            "MultiWorkerMirrored, as many workers as before",
            EXACT,
            "to the bit, all workers killed and started again",
            tf_keras("workers", "test_two_killed_workers_go_on_to_the_bit"),
        ),
        Row(
            "TensorFlow",
            "both, another number",
            PART,
            "one replica after two: goes on at its step, and warns that sums are formed in another order",
            (
                *tf_keras(
                    "replicas",
                    "test_one_replica_goes_on_with_what_two_have_saved_and_says_that_sums_are_rounded_otherwise",
                ),
                *tf_keras(
                    "workers",
                    "test_one_process_goes_on_with_the_batches_of_two_workers_and_says_what_differs",
                ),
            ),
        ),
        Row(
            "TensorFlow",
            "MultiWorkerMirrored, a worker that does not see the checkpoint",
            RAISES,
            "`CheckpointError` on all",
            tf_keras(
                "workers", "test_a_worker_that_does_not_see_the_checkpoint_is_an_error_on_all"
            ),
        ),
        Row(
            "TensorFlow",
            "any, dropout without `enable_tf_random_generator()`, or `run_eagerly`",
            RAISES,
            "`TrainingError`: what a step draws from could not be saved",
            tf_keras(
                "fit",
                "test_dropout_from_a_kernel_s_memory_is_refused_with_the_call_that_helps",
                "test_a_model_that_runs_eagerly_is_refused",
            ),
        ),
        Row("TensorFlow", "OneDevice, ParameterServer, TPU", UNTESTED, ""),
    ),
    "Estimator over input_fn(ds, model_dir)": (
        Row(
            "TensorFlow 2.15",
            "none",
            EXACT,
            "the batches of each training step, after SIGKILL too: seekable data, streams (walked), seeds that "
            "were drawn. Run by `nox -s estimator`",
            of(
                "estimator/test_estimator.py",
                "test_two_calls_of_train_see_items_0_to_4_and_5_to_9",
                "test_a_killed_run_goes_on_in_a_fresh_process_at_its_last_checkpoint",
                "test_a_stream_is_walked_and_says_so",
            ),
        ),
        Row(
            "TensorFlow 2.15",
            "none, another pipeline, or checkpoints of an unknown one",
            RAISES,
            "`PipelineChanged`, `CheckpointError`",
            of(
                "estimator/test_estimator.py",
                "test_another_pipeline_is_refused_before_anything_is_trained",
                "test_checkpoints_of_an_unknown_pipeline_are_refused",
            ),
        ),
        Row("TensorFlow 2.15", "`RunConfig(train_distribute=...)`", UNTESTED, ""),
    ),
    "JAX loop": (
        Row(
            "JAX",
            "one device, or sharded over the devices of one process",
            EXACT,
            "batches and position by `playhead.jax.prefetch_to_device`; parameters are the loop's to save",
            (
                *device("jax"),
                *of(
                    "jax/test_device.py",
                    "test_batches_lie_sharded_over_two_devices_and_resume_there",
                ),
            ),
        ),
        Row("JAX", "several processes", UNTESTED, ""),
    ),
    "torch loop": (
        Row(
            "torch",
            "the CPU",
            EXACT,
            "batches and position by `playhead.torch.prefetch_to_device`; parameters are the loop's to save",
            device("torch"),
        ),
        Row(
            "torch",
            "CUDA",
            PART,
            "every batch whole and in order; a resume is tested on the CPU only",
            of("torch/test_device.py", "test_on_cuda_every_element_is_whole_when_it_is_taken"),
        ),
        Row("torch", "DataLoader, DistributedDataParallel", UNTESTED, ""),
    ),
}

HEAD = """# What is exact

For every loop, backend and strategy: what a run that was broken off and started again has in common with one
that was left alone, and the tests that say so. `docs/matrix.py` makes this page; the numbers are those of the
tests [below](#tests).

| | |
|---|---|
| **exact** | the same batches in the same order and, where a row says so, losses and weights to the bit |
| **in part** | what holds, and what does not, is said |
| **no resume** | the loop reads right but nothing is saved |
| **raises** | an error says so |
| not tested | nothing is promised |

All of it is tested on CPUs, where the bits repeat, but for the row that says CUDA. What losses and weights need
to repeat on a GPU is in [What is restored](keras.md#what-is-restored).
"""


def page() -> str:
    numbers: dict[str, int] = {}
    lines = [HEAD]
    for loop, rows in ROWS.items():
        lines += [f"## {loop}\n", "| backend | strategy | | | tests |", "|---|---|---|---|---|"]
        for row in rows:
            found = [str(numbers.setdefault(test, len(numbers) + 1)) for test in row.tests]
            verdict = row.verdict if row.verdict == UNTESTED else f"**{row.verdict}**"
            cells = (row.backend, row.strategy, verdict, row.said, " ".join(found))
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["## Tests\n", *(f"{number}. `{test}`" for test, number in numbers.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
