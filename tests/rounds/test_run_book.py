"""What a site remembers of its runs beyond one folder: how many began, their sessions, and rounds without a result."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rounds_federation import TARGET, Federation, signer, until
from source_stores import book_beside, store_at

from securefda.errors import ConfigError, FaultyAggregatorError, PolicyRefusal, SecureFdaError
from securefda.protocol.messages import NO_CONTEXT, Header, Parcel, Refusal, Signed
from securefda.site.policy import ReleaseLimits
from securefda.source.run_book import RunBook, run_book_file

ME = 1
DAY_S = 86_400
A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
FOLDER, OTHER_FOLDER = "12.34", "56.78"
REFUSED = 3
"""Exit code of a process; Python's own, after any other error, is 1."""
Book, Headers = Callable[..., RunBook], Callable[..., Signed[Header]]


@pytest.fixture
def header(tmp_path: Path) -> Headers:
    """Makes signed headers of any run, round and session."""
    federation = Federation(tmp_path / "federation")
    first = until(federation.open(), ME, Header).message

    def make(run: bytes, number: int = 1, attempt: int = 1, session: bytes = b"") -> Signed[Header]:
        body = replace(first.body, run_id=run, round=number, attempt=attempt)
        return signer(TARGET).sign(session or run + bytes([number, attempt]) * 8, NO_CONTEXT, body)

    return make


class Clock:
    """The time of the site."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(tmp_path: Path, clock: Clock) -> Iterator[Book]:
    """Opens the book, each time as a new process of the site does."""
    opened: list[RunBook] = []

    def open_book(*, accept_run: bool = False, **limits: int) -> RunBook:
        while opened:
            opened.pop().close()
        opened.append(RunBook(run_book_file(tmp_path), ReleaseLimits(**limits), unix_time=clock, accept_run=accept_run))
        return opened[-1]

    yield open_book
    while opened:
        opened.pop().close()


def finish(book: RunBook, header: Signed[Header], folder: str = FOLDER) -> None:
    book.begin_attempt(header, folder)
    book.result_accepted(header.body.run_id, header.body.round)


def is_open(book: RunBook, run: bytes, folder: str = FOLDER, number: int | None = None) -> bool:
    try:
        book.require_open(run, folder, number)
    except (PolicyRefusal, FaultyAggregatorError):
        return False
    return True


def test_a_second_run_in_a_day_is_refused_and_the_first_goes_on(book: Book, header: Headers) -> None:
    own = book()
    finish(own, header(A))

    with pytest.raises(PolicyRefusal) as refused:
        own.begin_attempt(header(B, 1, session=b"s" * 32), OTHER_FOLDER)

    assert (refused.value.key, refused.value.allowed) == ("release.max-runs", "1")
    assert refused.value.hint.endswith("securefda source start --accept-run")
    assert not own.has_session(b"s" * 32)
    finish(own, header(A, 2))


def test_runs_are_counted_over_folders_and_processes(book: Book, header: Headers) -> None:
    finish(book(max_runs=2), header(A))
    finish(book(max_runs=2), header(B), OTHER_FOLDER)

    assert not is_open(book(max_runs=2), C)


def test_no_result_pays_for_a_round_that_is_unfinished_for_good(book: Book, header: Headers) -> None:
    own = book(max_unfinished=2)
    own.begin_attempt(header(A, 1), FOLDER)
    own.keep_unfinished(A, 1)
    for number in range(2, 9):
        finish(own, header(A, number))
    own.begin_attempt(header(A, 9), FOLDER)

    assert not is_open(own, A, number=10)
    own.result_accepted(A, 9)
    assert is_open(own, A, number=10)
    own.begin_attempt(header(A, 10), FOLDER)
    own.keep_unfinished(A, 10)
    own.result_accepted(A, 10)
    assert not is_open(own, A, number=11)


def test_a_run_is_over_when_as_many_have_begun_since_as_the_policy_permits(
    book: Book, header: Headers, clock: Clock
) -> None:
    own = book(max_runs=2)
    finish(own, header(A))
    finish(own, header(B))
    clock.now += DAY_S
    finish(own, header(A, 2))
    finish(own, header(C))

    with pytest.raises(PolicyRefusal, match="again, though 2 began after it") as refused:
        own.begin_attempt(header(A, 3, session=b"s" * 32), FOLDER)

    assert (refused.value.key, refused.value.allowed) == ("release.max-runs", "2")
    assert not own.has_session(b"s" * 32)
    assert not is_open(own, A)
    finish(own, header(B, 2))


def test_the_operators_word_opens_a_run_that_is_over_and_it_is_the_latest_then(
    book: Book, header: Headers, clock: Clock
) -> None:
    finish(book(), header(A))
    clock.now += DAY_S
    finish(book(), header(B))

    finish(book(accept_run=True), header(A, 2))

    assert is_open(book(), A)
    assert not is_open(book(), B)


def test_a_run_counts_for_a_day(book: Book, header: Headers, clock: Clock) -> None:
    own = book()
    finish(own, header(A))

    clock.now += DAY_S - 1
    assert not is_open(own, B)
    clock.now += 2
    assert is_open(own, B)


def test_a_run_counts_where_the_clock_was_put_back(book: Book, header: Headers, clock: Clock) -> None:
    own = book()
    finish(own, header(A))
    clock.now -= 10 * DAY_S

    assert not is_open(own, B)


def test_a_run_that_was_begun_and_came_to_nothing_counts(book: Book, header: Headers) -> None:
    own = book()
    own.begin_attempt(header(A), FOLDER)

    assert not is_open(own, B)


def test_the_operator_s_word_is_for_one_run_of_one_process(book: Book, header: Headers) -> None:
    finish(book(), header(A))
    consenting = book(accept_run=True)

    finish(consenting, header(B), OTHER_FOLDER)

    assert is_open(consenting, B, OTHER_FOLDER)
    assert not is_open(consenting, C)
    finish(book(max_runs=0, accept_run=True), header(C, 3))
    assert not is_open(book(), b"D" * 16)


def test_the_operator_s_word_is_not_used_up_by_a_run_that_needs_none(book: Book, header: Headers) -> None:
    consenting = book(accept_run=True)
    finish(consenting, header(A))

    assert is_open(consenting, B)


def test_with_0_runs_a_day_none_begins_by_itself(book: Book) -> None:
    assert not is_open(book(max_runs=0), A)
    assert is_open(book(max_runs=0, accept_run=True), A)


def test_a_run_stays_in_the_folder_that_it_began_in(book: Book, header: Headers) -> None:
    """Another folder knows neither its fuses nor its positions."""
    own = book(max_runs=10)
    finish(own, header(A))

    with pytest.raises(FaultyAggregatorError, match="in another folder") as refused:
        own.begin_attempt(header(A, 2), OTHER_FOLDER)
    assert (refused.value.check, refused.value.blames) == ("HEADER_RUN", False)


def test_a_session_is_remembered_in_every_run_and_folder(book: Book, header: Headers) -> None:
    finish(book(), header(A, session=b"s" * 32))

    assert book().has_session(b"s" * 32)
    assert not book().has_session(b"t" * 32)


def test_after_three_rounds_without_a_result_a_fourth_is_refused_until_the_operator_says_otherwise(
    book: Book, header: Headers
) -> None:
    for number in (1, 2, 3):
        book().begin_attempt(header(A, number), FOLDER)

    with pytest.raises(PolicyRefusal) as refused:
        book().begin_attempt(header(A, 4, session=b"s" * 32), FOLDER)
    assert refused.value.key == "release.max-unfinished"
    assert refused.value.hint.endswith("securefda source start --accept-run")
    assert not book().has_session(b"s" * 32)
    assert is_open(book(accept_run=True), A, number=4)
    assert is_open(book(), A, number=4)


def test_another_attempt_at_the_third_round_is_open(book: Book, header: Headers) -> None:
    own = book()
    for number in (1, 2, 3):
        own.begin_attempt(header(A, number), FOLDER)

    assert is_open(own, A)
    own.begin_attempt(header(A, 3, attempt=2), FOLDER)
    assert not is_open(own, A, number=4)


def test_a_result_pays_for_one_round_without_one(book: Book, header: Headers) -> None:
    """Were it all of them, every result would buy as many questions as the policy lets pass in a row."""
    own = book()
    for number in (1, 2):
        own.begin_attempt(header(A, number), FOLDER)
    finish(own, header(A, 3))
    for number in (4, 5):
        own.begin_attempt(header(A, number), FOLDER)
    assert not is_open(own, A, number=6)

    own.result_accepted(A, 5)
    own.begin_attempt(header(A, 6), FOLDER)
    own.begin_attempt(header(A, 7), FOLDER)
    assert not is_open(own, A, number=8)


def test_a_run_of_which_every_second_round_is_lost_goes_on(book: Book, header: Headers) -> None:
    own = book()
    for number in range(1, 40, 2):
        own.begin_attempt(header(A, number), FOLDER)
        finish(own, header(A, number + 1))


def test_of_two_processes_that_take_one_session_one_is_refused(
    book: Book, header: Headers, tmp_path: Path, clock: Clock
) -> None:
    own = book(max_runs=2)
    other = RunBook(run_book_file(tmp_path), ReleaseLimits(max_runs=2), unix_time=clock)
    assert not own.has_session(b"s" * 32)
    other.begin_attempt(header(A, session=b"s" * 32), FOLDER)

    with pytest.raises(FaultyAggregatorError) as refused:
        own.begin_attempt(header(B, session=b"s" * 32), OTHER_FOLDER)
    assert refused.value.check == "HEADER_REPLAY"
    assert not own.knows(B)


def test_a_folder_whose_run_the_book_lacks_is_refused(tmp_path: Path) -> None:
    """To delete the book would make the site forget what it took part in."""
    federation = Federation(tmp_path)
    federation.sources[ME].handle(until(federation.open(), ME, Header))
    federation.close()
    state = tmp_path / f"source-{ME}.sqlite"
    for file in tmp_path.glob(f"{book_beside(state).stem}*"):
        file.unlink()

    with pytest.raises(ConfigError, match=r"runs\.sqlite: was deleted or put back .* it lacks run") as refused:
        store_at(state)
    assert "never again in the run of this one" in refused.value.hint


def test_a_new_folder_takes_no_part_in_a_run_with_a_release_in_the_log_that_the_book_lacks(tmp_path: Path) -> None:
    federation = Federation(tmp_path).open().go()
    for file in tmp_path.glob(f"source-{ME}*"):
        file.unlink()
    source, run = federation.source(ME), federation.run.run_id

    with pytest.raises(ConfigError, match=f"it lacks run {run[:12]}, of which .* records a release") as refused:
        source.join(run)
    assert "never again in the run of this one" in refused.value.hint


def test_a_run_that_the_book_lacks_and_in_which_nothing_left_is_joined(tmp_path: Path) -> None:
    """As after a kill between the join and the first header."""
    federation = Federation(tmp_path).open()
    federation.restart(ME)

    federation.sources[ME].handle(until(federation, ME, Header))

    assert federation.sources[ME].current is not None


def test_a_new_run_does_not_set_the_count_back(book: Book, header: Headers) -> None:
    for run in (A, B, C):
        book(max_runs=10).begin_attempt(header(run, session=run * 2), FOLDER)

    with pytest.raises(PolicyRefusal, match=r"release\.max-unfinished"):
        book(max_runs=10).require_open(b"D" * 16, FOLDER)


def begin(path: Path, header: Signed[Header], go: object) -> None:
    """A process of the site; ends with 0 where its run may begin, and with ``REFUSED`` where the policy forbids it."""
    go.wait()  # type: ignore[attr-defined]
    own = RunBook(path, ReleaseLimits())
    try:
        own.begin_attempt(header, header.body.run_id.hex())
    except PolicyRefusal:
        raise SystemExit(REFUSED) from None
    finally:
        own.close()


def test_of_two_runs_that_begin_at_once_one_begins(tmp_path: Path, header: Headers) -> None:
    context = multiprocessing.get_context("fork")
    go = context.Event()
    processes = [
        context.Process(target=begin, args=(run_book_file(tmp_path), header(run, session=run * 2), go))
        for run in (A, B)
    ]
    for process in processes:
        process.start()
    go.set()
    for process in processes:
        process.join(30)

    assert sorted(process.exitcode for process in processes) == [0, REFUSED]


def test_a_source_that_refuses_a_run_says_so_and_trains_nothing(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    book = RunBook(book_beside(tmp_path / f"source-{ME}.sqlite"), ReleaseLimits(), unix_time=lambda: federation.unix_s)
    parcel = until(federation.open(), ME, Header)
    other = replace(parcel.message.body, run_id=A)
    book.begin_attempt(signer(TARGET).sign(b"s" * 32, NO_CONTEXT, other), OTHER_FOLDER)
    book.close()

    (answer,) = federation.sources[ME].handle(Parcel(parcel.message, parcel.vectors))

    assert answer.message.body == Refusal("release.max-runs")
    assert federation.sources[ME].current is None


def test_a_run_counts_before_its_folder_is_bound(tmp_path: Path, header: Headers) -> None:
    """A process that dies between the two has asked for nothing that is not counted."""
    state = tmp_path / "state.sqlite"
    store = store_at(state)
    store._database.execute("PRAGMA query_only = 1")  # as where the folder cannot be written
    with pytest.raises(SecureFdaError, match="cannot be written"):
        store.accept_header(header(A, session=b"s" * 32))
    store.close()

    book = RunBook(book_beside(state), ReleaseLimits())
    assert book.knows(A)
    assert book.has_session(b"s" * 32)
    book.close()
    store_at(state).close()


def test_a_book_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    path = run_book_file(tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"no database" * 100)

    with pytest.raises(SecureFdaError, match=r"runs\.sqlite: file is not a database"):
        RunBook(path, ReleaseLimits())
