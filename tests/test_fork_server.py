"""The fork server of the tests: a copy of it is a process like any other, and is refused where it could not be."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import fork_server
import pytest
from fork_server import ForkServer, PipedProcess

from securefda.local.fork_server import ForkServerError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere tests start every process by exec")
LIGHT = ("numpy", "tempfile")
WAIT_S = 60.0
Run = Callable[..., PipedProcess]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """One that has imported next to nothing."""
    server = ForkServer(LIGHT)
    yield server
    server.close()


@pytest.fixture
def run(server: ForkServer, tmp_path: Path) -> Run:
    """Runs the text of a module, each in a file of its own: a process may read it after the next has started."""
    numbers = itertools.count(1)

    def start(text: str, *arguments: str, of: ForkServer = server, **environment: str) -> PipedProcess:
        name = f"program{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        return of.run(name, arguments, cwd=tmp_path, env=surrounding() | environment)

    return start


def surrounding() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def says(process: PipedProcess) -> str:
    """What it printed, once it has ended well."""
    assert process.wait(WAIT_S) == 0, process.stderr.read()
    return process.stdout.read()


@pytest.mark.parametrize(
    ("text", "code", "err"),
    [
        ("", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import os; os._exit(8)", 8, ""),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os, signal; signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)", -15, ""),
    ],
)
def test_exit_code_is_that_of_a_process(run: Run, text: str, code: int, err: str) -> None:
    process = run(text)
    assert (process.wait(WAIT_S), process.stderr.read()) == (code, err)
    assert (process.poll(), process.returncode) == (code, code)


def test_an_uncaught_error_is_a_traceback_and_1(run: Run) -> None:
    process = run("{}['no such key']")
    assert process.wait(WAIT_S) == 1
    assert process.stderr.read().endswith("KeyError: 'no such key'\n")


def test_it_is_what_python_m_runs(run: Run, tmp_path: Path) -> None:
    """Name, arguments, search path, folder and streams, beside a process that was started by exec."""
    text = (
        "import os, signal, sys, tempfile\n"
        "print(__name__, __spec__.name, sys.argv, sys.path, os.getcwd(), sys.flags, sorted(os.environ.items()))\n"
        "print(os.getsid(0) == os.getpid(), sys.stdin.read() == '', tempfile.gettempdir())\n"
        "print([signal.getsignal(n) for n in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)])\n"
        "print(signal.set_wakeup_fd(-1), sorted(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')))\n"
    )
    (tmp_path / "tmp").mkdir()
    changes = {"PYTHONPATH": f"{tmp_path}/a b{os.pathsep}{tmp_path}/c", "TMPDIR": str(tmp_path / "tmp"), "NEW": "x"}
    copy = run(text, "one", "--two=3", **changes)
    process = fork_server.start_by_exec("program1", ["one", "--two=3"], cwd=tmp_path, env={**surrounding(), **changes})
    out, err = process.communicate(timeout=WAIT_S)
    assert (says(copy), copy.args) == (out, process.args)
    assert err == ""


def test_the_end_is_that_of_python(run: Run) -> None:
    """Threads are waited for, exit handlers run and streams are flushed, in that order."""
    text = (
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'handler', end='')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "print('main')\n"
    )
    assert says(run(text)) == "main\nthread\nhandler"


def test_children_share_no_environment_folder_module_or_file(run: Run) -> None:
    dirty = run(
        "import os, sys, json; os.environ['LEFT'] = '1'; sys.path.append('/left'); os.chdir('/'); json.left = 1"
    )
    assert says(dirty) == ""
    clean = run("import os, sys, json; print('LEFT' in os.environ, '/left' in sys.path, hasattr(json, 'left'))")
    assert says(clean) == "False False False\n"


def test_children_draw_different_random_numbers(run: Run) -> None:
    text = (
        "import os, random, secrets, tempfile, uuid\nimport numpy\n"
        "print(os.urandom(8).hex(), random.random(), secrets.token_hex(), next(tempfile._get_candidate_names()),"
        " uuid.uuid4(), numpy.random.random(), sep='\\n')\n"
    )
    one, other = (says(run(text)).splitlines() for _ in range(2))
    assert len(one) == 6
    assert not set(one) & set(other)


def test_children_of_the_server_that_sites_are_copies_of_draw_different_keys_and_weights(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import ssl, torch\n"
        "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey\n"
        "print(Ed25519PrivateKey.generate().private_bytes_raw().hex(), ssl.RAND_bytes(8).hex(), sep='\\n')\n"
        "print(torch.rand(1).item(), torch.initial_seed(), sep='\\n')\n"
    )
    one, other = (says(fork_server.start("program", [], cwd=tmp_path, env=surrounding())).splitlines() for _ in "12")
    assert len(one) == 4
    assert not set(one) & set(other)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGABRT])
def test_a_signal_ends_it(run: Run, number: signal.Signals) -> None:
    process = run("import time; print('ready', flush=True); time.sleep(600)")
    assert process.stdout.readline() == "ready\n"
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(WAIT_S) == -number
    process.send_signal(number)  # of which nobody hears
    process.kill()
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_wait_ends_in_time(run: Run) -> None:
    process = run("import time; time.sleep(600)")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.kill()
    assert process.wait(WAIT_S) == -signal.SIGKILL


def test_much_is_written_and_asked_for_at_once(run: Run) -> None:
    """More than a pipe or a socket holds, by several children beside each other."""
    text = "import os, sys; print(os.environ['LONG'], len(sys.argv[1]))"
    size = 100_000
    processes = [run(text, "x" * size, LONG=str(number) * size) for number in range(4)]
    texts = [process.stdout.read() for process in processes]
    assert texts == [f"{str(number) * size} {size}\n" for number in range(4)]
    assert [process.wait(WAIT_S) for process in processes] == [0] * 4


def test_a_server_with_a_thread_forks_nothing(tmp_path: Path, run: Run) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    threaded = ForkServer(("threaded",), [tmp_path])
    with pytest.raises(ForkServerError, match="the fork server has 2 threads"):
        run("", of=threaded)
    threaded.close()


def test_a_server_that_could_not_start_says_so(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    broken = ForkServer(("no_such_module",))
    with pytest.raises(ForkServerError, match="the fork server"):
        run("", of=broken)
    broken.close()
    assert "No module named 'no_such_module'" in capfd.readouterr().err


@pytest.mark.parametrize("changes", [{"OMP_NUM_THREADS": "2"}, {"PYTHONHASHSEED": "7"}, {"LC_ALL": "xx_XX"}])
def test_a_variable_that_acts_at_the_start_is_refused(run: Run, changes: Mapping[str, str]) -> None:
    with pytest.raises(ForkServerError, match=f"{next(iter(changes))} acts when a process starts"):
        run("", **changes)


def test_what_an_import_sets_in_the_environment_is_set(tmp_path: Path, run: Run) -> None:
    """Of securefda.transport, for instance, which chooses the cipher suites of gRPC before gRPC reads them."""
    (tmp_path / "setting.py").write_text("import os; os.environ['GRPC_TRACE'] = 'mine'")
    server = ForkServer(("setting",), [tmp_path])
    for environment in ({}, {"GRPC_TRACE": "other"}, {"GRPC_TRACE": "mine"}):
        assert says(run("import os; print(os.environ['GRPC_TRACE'])", of=server, **environment)) == "mine\n"
    server.close()


def test_a_server_that_is_left_takes_its_children_with_it(tmp_path: Path) -> None:
    """Also where the tests are killed, and can close nothing."""
    (tmp_path / "program.py").write_text("import time; print('ready', flush=True); time.sleep(600)")
    (tmp_path / "tests.py").write_text(
        "import os, sys\nfrom pathlib import Path\nfrom fork_server import ForkServer\n"
        "server = ForkServer(())\n"
        "child = server.run('program', [], cwd=Path(sys.argv[1]), env=os.environ | {'OMP_NUM_THREADS': '1'})\n"
        "assert child.stdout.readline() == 'ready\\n'\n"
        "print(server.pid, child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    support = str(Path(fork_server.__file__).parent)
    command = [sys.executable, tmp_path / "tests.py", tmp_path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([support, str(fork_server.REPOSITORY)])}
    killed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = [Path("/proc") / pid for pid in killed.stdout.split()]
    assert len(left) == 2
    deadline = time.monotonic() + WAIT_S
    while any(is_running(process) for process in left) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(is_running(process) for process in left)


def is_running(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


DIES = """
import os, signal
from pathlib import Path
fork = os.fork
def dying():
    pid = fork()
    if pid:
        Path("{folder}/copy").write_text(str(pid))
        os.kill(os.getpid(), signal.SIGKILL)
    return pid
os.fork = dying
"""


def test_where_the_server_dies_between_fork_and_answer_the_copy_runs_nothing(tmp_path: Path, run: Run) -> None:
    """So that a site of which nothing was heard can be started by exec, and is not started twice."""
    (tmp_path / "dies.py").write_text(DIES.format(folder=tmp_path))
    dying = ForkServer(["dies"], [tmp_path])
    writes = f"open('{tmp_path}/ran', 'w').close()"
    with pytest.raises(ForkServerError, match="has ended"):
        run(writes, of=dying)
    copy = Path("/proc", (tmp_path / "copy").read_text())
    deadline = time.monotonic() + WAIT_S
    while is_running(copy):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not (tmp_path / "ran").exists()
    dying.close()
    assert says(run(writes)) == ""
    assert (tmp_path / "ran").exists()


KILLS = """
import os, signal
fork = os.fork
def killing():
    pid = fork()
    if pid:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid
os.fork = killing
"""


def test_a_copy_that_is_ended_before_it_may_run_has_its_exit_code(tmp_path: Path, run: Run) -> None:
    (tmp_path / "kills.py").write_text(KILLS)
    server = ForkServer(["kills"], [tmp_path])
    assert run("print('ran')", of=server).wait(WAIT_S) == -signal.SIGKILL
    server.close()
