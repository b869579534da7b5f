"""Programs that try to escape from the sandbox, or to be judged better than they are. Run them nowhere else."""

import sys
from typing import NamedTuple

from retroformer.environments.programming.problems import Verdict

DAEMON = "left-behind"
"""Name of a process that tries to outlive its judgement."""


class Attempt(NamedTuple):
    source: str
    verdict: Verdict
    output: str = ""
    """Text that the feedback must contain."""


RIGHT = "\ndef double(x):\n    return x + x\n"
WRONG = "\ndef double(x):\n    return None\n"

EXHAUSTING = {
    "fork bomb": Attempt("import os\nwhile True:\n    os.fork()\n", Verdict.CRASH, "PermissionError"),
    "fork bomb that catches": Attempt(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n", Verdict.TIMEOUT
    ),
    "subprocess": Attempt(
        "import subprocess\ndef double(x):\n    return subprocess.run(['/bin/sh', '-c', 'echo 42'])\n", Verdict.CRASH
    ),
    "multiprocessing": Attempt(
        "import multiprocessing\ndef double(x):\n    return multiprocessing.Pool(64).map(str, [x])\n", Verdict.CRASH
    ),
    "thread bomb": Attempt(
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()\n",
        Verdict.CRASH,
        "can't start new thread",
    ),
    "memory bomb": Attempt("def double(x):\n    return bytearray(1 << 34)\n", Verdict.CRASH, "MemoryError"),
    "memory bomb in small parts": Attempt(
        "def double(x):\n    parts = []\n    while True:\n        parts.append(bytearray(1 << 20))\n",
        Verdict.CRASH,
        "MemoryError",
    ),
    "memory beyond the address space": Attempt(
        "import os\ndef double(x):\n    return os.memfd_create('hoard')\n", Verdict.CRASH, "PermissionError"
    ),
    "endless output": Attempt("def double(x):\n    while True:\n        print('x' * 4096)\n", Verdict.TIMEOUT),
    "gigabyte print, then right": Attempt(
        "chunk = 'x' * (1 << 24)\nfor _ in range(64):\n    print(chunk)\n" + RIGHT, Verdict.PASSED
    ),
    "giant answer": Attempt("def double(x):\n    return 'x' * (1 << 24)\n", Verdict.CRASH, "larger than"),
    "endless answer": Attempt("import itertools\ndef double(x):\n    return itertools.count()\n", Verdict.CRASH),
    "answer within itself": Attempt(
        "def double(x):\n    answer = []\n    answer.append(answer)\n    return answer\n", Verdict.CRASH, "deep"
    ),
    "giant integer": Attempt("def double(x):\n    return 1 << (1 << 27)\n", Verdict.CRASH, "larger than"),
    "huge file": Attempt(
        "def double(x):\n    with open('big', 'wb') as file:\n        while True:\n"
        "            file.write(bytes(1 << 16))\n",
        Verdict.CRASH,
    ),
    "many files": Attempt(
        "def double(x):\n    for i in range(10**6):\n        open(str(i), 'w').close()\n",
        Verdict.CRASH,
        "No space left",
    ),
    "many open files": Attempt(
        "def double(x):\n    return len([open('/dev/null') for _ in range(1000)])\n", Verdict.CRASH, "Too many open"
    ),
    "deep recursion": Attempt("def double(x):\n    return double(x)\n", Verdict.CRASH, "RecursionError"),
    "recursion in C": Attempt(
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self):\n        return repr([self])\n"
        "def double(x):\n    return repr(A())\n",
        Verdict.CRASH,
        # Python 3.12 and later detect it.
        "SIGSEGV" if sys.version_info < (3, 12) else "RecursionError",
    ),
    "endless loop": Attempt("def double(x):\n    while True:\n        pass\n", Verdict.TIMEOUT),
    "endless loop on import": Attempt("while True:\n    pass\n", Verdict.TIMEOUT),
    "regular expression": Attempt(
        "import re\ndef double(x):\n    return re.match('(a+)+$', 'a' * 40 + 'b')\n", Verdict.TIMEOUT
    ),
    "a deaf one": Attempt(
        "import signal\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\ndef double(x):\n    while True:\n        pass\n",
        Verdict.TIMEOUT,
    ),
    "the signal of the limit itself": Attempt(
        "import os, signal\ndef double(x):\n    os.kill(os.getpid(), signal.SIGXCPU)\n", Verdict.TIMEOUT
    ),
    "numbers that take the judge hours to compare": Attempt(
        "import collections.abc as abc\nclass Keys(abc.Mapping):\n"
        "    def __iter__(self):\n        return (i * (2**61 - 1) for i in range(150_000))\n"
        "    def __len__(self):\n        return 150_000\n    def __getitem__(self, key):\n        return 0\n"
        "def double(x):\n    return abc.KeysView(Keys())\n",
        Verdict.TIMEOUT,
        "no answer within 1 s",
    ),
    "an answer that is small here and huge elsewhere": Attempt(
        "def double(x):\n    for _ in range(40):\n        x = [x, x]\n    return x\n", Verdict.TIMEOUT
    ),
    "blocking every signal": Attempt(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ndef double(x):\n"
        "    while True:\n        pass\n",
        Verdict.TIMEOUT,
    ),
    "raising its own limits": Attempt(
        "import resource\ndef double(x):\n    resource.setrlimit(resource.RLIMIT_CPU, (99, 99))\n", Verdict.CRASH
    ),
}

SLEEPING = {
    "sleeping forever": Attempt("import time\ndef double(x):\n    time.sleep(10**6)\n", Verdict.TIMEOUT),
    "stopping itself": Attempt(
        "import os, signal\ndef double(x):\n    os.kill(os.getpid(), signal.SIGSTOP)\n", Verdict.TIMEOUT
    ),
    "dripping an answer byte by byte": Attempt(
        "import gc, socket, time\ndef double(x):\n"
        "    channels = [o for o in gc.get_objects() if isinstance(o, socket.socket)]\n"
        "    for part in [b'\\0\\0\\xff\\xff', *[b'N'] * 10**6]:\n        for channel in channels:\n"
        "            try:\n                channel.sendall(part)\n            except OSError:\n                pass\n"
        "        time.sleep(0.1)\n",
        Verdict.TIMEOUT,
    ),
    "waiting for input it took from the judge": Attempt(
        "import os\ndef double(x):\n    for number in range(3, 64):\n        try:\n            os.read(number, 1)\n"
        "        except OSError:\n            pass\n",
        Verdict.TIMEOUT,
    ),
}

REACHING = {
    "TCP": Attempt("import socket\nsocket.create_connection(('127.0.0.1', 80), 1)\n", Verdict.CRASH, "PermissionError"),
    "UDP": Attempt(
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))\n", Verdict.CRASH
    ),
    "raw socket": Attempt("import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n", Verdict.CRASH),
    "abstract unix socket": Attempt(
        "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0HOST_SOCKET')\n", Verdict.CRASH, "PermissionError"
    ),
    "vsock": Attempt("import socket\nsocket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)\n", Verdict.CRASH),
    "reading a secret": Attempt("def double(x):\n    return open('HOST_FILE').read()\n", Verdict.CRASH, "No such file"),
    "reading the passwords": Attempt("def double(x):\n    return open('/etc/passwd').read()\n", Verdict.CRASH),
    "reading the parent's environment": Attempt(
        "import os\ndef double(x):\n    return open(f'/proc/{os.getppid()}/environ').read()\n",
        Verdict.CRASH,
        "FileNotFoundError",
    ),
    "its own environment": Attempt("import os\ndef double(x):\n    return dict(os.environ)\n", Verdict.WRONG, "{}"),
    "writing a file of the host": Attempt(
        "def double(x):\n    open('HOST_FOLDER/written', 'w').write('x')\n", Verdict.CRASH, "FileNotFoundError"
    ),
    "writing to the root": Attempt(
        "def double(x):\n    open('/written', 'w').write('x')\n", Verdict.CRASH, "Read-only file system"
    ),
    "writing to the standard library": Attempt(
        "import os\ndef double(x):\n    open(os.__file__, 'a').write('x')\n", Verdict.CRASH, "Error"
    ),
    "a symbolic link out": Attempt(
        "import os\nos.symlink('HOST_FILE', 'link')\ndef double(x):\n    return open('link').read()\n", Verdict.CRASH
    ),
    "a symbolic link to write through": Attempt(
        "import os\nos.symlink('/usr/lib', 'link')\ndef double(x):\n    open('link/written', 'w').write('x')\n",
        Verdict.CRASH,
        "Read-only file system",
    ),
    "up and out": Attempt("def double(x):\n    return open('../' * 40 + 'HOST_FILE').read()\n", Verdict.CRASH),
    "mounting": Attempt(
        "import ctypes\ndef double(x):\n    c = ctypes.CDLL(None, use_errno=True)\n"
        "    return [c.mount(b'proc', b'/work', b'proc', 0, None), c.umount(b'/'), c.unshare(0x10000000),"
        " c.chroot(b'.'), c.ptrace(16, 1, 0, 0)]\n",
        Verdict.WRONG,
        "[-1, -1, -1, -1, -1]",
    ),
    "watching the libraries": Attempt(
        "import ctypes, ctypes.util, os\ndef double(x):\n    c = ctypes.CDLL(None, use_errno=True)\n"
        "    return [c.inotify_init1(0), ctypes.get_errno()]\n",
        Verdict.WRONG,
        "[-1, 1]",
    ),
    "locking the libraries": Attempt(
        "import fcntl, os\ndef double(x):\n    with open(os.__file__) as file:\n"
        "        fcntl.flock(file, fcntl.LOCK_EX)\n",
        Verdict.CRASH,
        "PermissionError",
    ),
    "locking a part of the libraries": Attempt(
        "import fcntl, os\ndef double(x):\n    with open(os.__file__) as file:\n"
        "        fcntl.lockf(file, fcntl.LOCK_SH)\n",
        Verdict.CRASH,
        "PermissionError",
    ),
    "filling the pipes of the user": Attempt(
        "import fcntl, os\ndef double(x):\n    fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)\n",
        Verdict.CRASH,
        "PermissionError",
    ),
    "leaving open files on their way": Attempt(
        "import socket\ndef double(x):\n    first, second = socket.socketpair()\n    for _ in range(40):\n"
        "        socket.send_fds(first, [b'x'], [first.fileno()] * 50)\n",
        Verdict.CRASH,
        "PermissionError",
    ),
    "taking the timers of the user": Attempt(
        "import ctypes, platform\ndef double(x):\n    c, taken = ctypes.CDLL(None), 0\n"
        "    number = {'x86_64': 222, 'aarch64': 107}[platform.machine()]\n"
        "    while taken < 1000 and not c.syscall(number, 1, None, ctypes.byref(ctypes.c_int())):\n        taken += 1\n"
        "    return taken < 100\n",
        Verdict.WRONG,
        "True",
    ),
    "taking the pending signals of the user": Attempt(
        "import ctypes, os, signal\ndef double(x):\n    signal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
        "    c, taken = ctypes.CDLL(None), 0\n"
        "    while taken < 1000 and c.sigqueue(os.getpid(), 40, 0) == 0:\n        taken += 1\n"
        "    return taken < 100\n",
        Verdict.WRONG,
        "True",
    ),
    "taking the machine's asynchronous reads": Attempt(
        "import ctypes, platform\ndef double(x):\n    c = ctypes.CDLL(None, use_errno=True)\n"
        "    number = {'x86_64': 206, 'aarch64': 0}[platform.machine()]\n"
        "    return [c.syscall(number, 65536, ctypes.byref(ctypes.c_ulong())), ctypes.get_errno()]\n",
        Verdict.WRONG,
        "[-1, 1]",
    ),
    "mounts through calls of newer kernels": Attempt(
        "import ctypes\ndef double(x):\n    c = ctypes.CDLL(None)\n"
        "    calls = [(430, b'proc', 0), (428, -100, b'/', 1), (442, -100, b'/', 0, 0, 0), (457, 0), (458, 0)]\n"
        "    return [c.syscall(*call) for call in calls]\n",
        Verdict.WRONG,
        "[-1, -1, -1, -1, -1]",
    ),
    "becoming root": Attempt("import os\ndef double(x):\n    os.setuid(0)\n    open('/x', 'w')\n", Verdict.CRASH),
    "making a device": Attempt(
        "import os\ndef double(x):\n    os.mknod('disk', 0o060600, os.makedev(254, 0))\n", Verdict.CRASH, "Permission"
    ),
    "importing the project": Attempt("import retroformer\n" + RIGHT, Verdict.CRASH, "ModuleNotFoundError"),
    "importing a package of the host": Attempt("import pydantic\n" + RIGHT, Verdict.CRASH, "ModuleNotFoundError"),
}

KILLING = {
    "killing the parent": Attempt(
        "import os, signal\nfor number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP):\n"
        "    try:\n        os.kill(os.getppid(), number)\n    except PermissionError:\n        pass\n" + WRONG,
        Verdict.WRONG,
    ),
    "killing its group": Attempt(
        "import os, signal\ndef double(x):\n    os.kill(0, signal.SIGKILL)\n", Verdict.CRASH, "SIGKILL"
    ),
    "killing everybody": Attempt(
        "import os, signal\ntry:\n    os.kill(-1, signal.SIGKILL)\nexcept ProcessLookupError:\n    pass\n" + WRONG,
        Verdict.WRONG,
    ),
    "killing by number": Attempt(
        "import os, signal\nfor number in range(3, 70000):\n    try:\n        os.kill(number, signal.SIGKILL)\n"
        "    except ProcessLookupError:\n        pass\n" + RIGHT,
        Verdict.PASSED,
    ),
    "limiting the parent": Attempt(
        "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))\n",
        Verdict.CRASH,
        "Permission",
    ),
    "leaving a daemon": Attempt(
        "import os, time, ctypes\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        ctypes.CDLL(None).prctl(15, b'{DAEMON}', 0, 0, 0)\n        time.sleep(10**6)\n" + RIGHT,
        Verdict.CRASH,
        "PermissionError",
    ),
    "leaving a thread": Attempt(
        "import ctypes, threading, time\ndef stay():\n"
        f"    ctypes.CDLL(None).prctl(15, b'{DAEMON}', 0, 0, 0)\n    time.sleep(10**6)\n"
        "threading.Thread(target=stay).start()\n" + RIGHT,
        Verdict.PASSED,
    ),
    "a signal without a name": Attempt(
        "import os\ndef double(x):\n    os.kill(os.getpid(), 35)\n", Verdict.CRASH, "signal 35"
    ),
    "segmentation fault": Attempt("import ctypes\ndef double(x):\n    ctypes.string_at(0)\n", Verdict.CRASH, "SIGSEGV"),
    "abort": Attempt("import os\ndef double(x):\n    os.abort()\n", Verdict.CRASH, "SIGABRT"),
}

SEND = """
import gc, socket, sys
def double(x):
    for channel in [o for o in gc.get_objects() if isinstance(o, socket.socket)]:
        try:
            for _ in range(9):
                sys.modules['jail.wire'].send(channel, {message})
        except OSError:
            pass
"""
"""Program that takes the judge's own channel and answers in its place."""

FORGING = {
    "os._exit(0)": Attempt("import os\ndef double(x):\n    os._exit(0)\n", Verdict.CRASH, "exit status 0"),
    "os._exit(0) on import": Attempt("import os\nos._exit(0)\n", Verdict.CRASH, "exit status 0"),
    "sys.exit(0)": Attempt("import sys\ndef double(x):\n    sys.exit(0)\n", Verdict.CRASH, "SystemExit"),
    "sys.exit(0) on import": Attempt("import sys\nsys.exit(0)\n", Verdict.CRASH, "SystemExit"),
    "raising KeyboardInterrupt": Attempt("def double(x):\n    raise KeyboardInterrupt\n", Verdict.CRASH, "Interrupt"),
    "ending the test's loop": Attempt("def double(x):\n    raise StopIteration\n", Verdict.CRASH, "StopIteration"),
    "exit in atexit": Attempt("import atexit, os\natexit.register(os._exit, 0)\n" + WRONG, Verdict.WRONG),
    "no code at all": Attempt("", Verdict.CRASH, "double"),
    "syntax error": Attempt("def double(x) return x", Verdict.CRASH, "SyntaxError"),
    "always equal": Attempt(
        "class Any:\n    def __eq__(self, other):\n        return True\n"
        "    def __ne__(self, other):\n        return False\n"
        "    def __hash__(self):\n        return 0\ndef double(x):\n    return Any()\n",
        Verdict.WRONG,
        "own class",
    ),
    "integer that is always equal": Attempt(
        "class Any(int):\n    def __eq__(self, other):\n        return True\ndef double(x):\n    return Any(7)\n",
        Verdict.WRONG,
        "7",
    ),
    "text that is always equal": Attempt(
        "class Any(str):\n    def __eq__(self, other):\n        return True\ndef double(x):\n    return Any('7')\n",
        Verdict.WRONG,
        "'7'",
    ),
    "list that is always equal": Attempt(
        "class Any(list):\n    def __eq__(self, other):\n        return True\n    __len__ = lambda self: 42\n"
        "def double(x):\n    return Any([7])\n",
        Verdict.WRONG,
    ),
    "class that lies about its type": Attempt(
        "class Any:\n    __class__ = int\n    def __eq__(self, other):\n        return True\n    def __int__(self):\n"
        "        return 7\ndef double(x):\n    return Any()\n",
        Verdict.WRONG,
    ),
    "reflected comparison": Attempt(
        "class Any:\n    def __radd__(self, other):\n        return 42\n    __rsub__ = __radd__\ndef double(x):\n"
        "    return [Any()]\n",
        Verdict.WRONG,
    ),
    "new AssertionError": Attempt(
        "import builtins\nclass Quiet(BaseException):\n    pass\nbuiltins.AssertionError = Quiet\n"
        "AssertionError = Quiet\n" + WRONG,
        Verdict.WRONG,
    ),
    "new builtins": Attempt(
        "import builtins\nfor name in ('compile', 'exec', 'eval', 'repr', 'print', 'isinstance', 'all', 'any'):\n"
        "    setattr(builtins, name, lambda *a, **k: True)\n" + WRONG,
        Verdict.CRASH,
    ),
    "new sys.modules": Attempt("import sys\nsys.modules.clear()\n" + WRONG, Verdict.WRONG),
    "patching the judge's modules": Attempt(
        "import sys\nfor name, module in list(sys.modules.items()):\n    if name.startswith('jail'):\n"
        "        for key in list(vars(module)):\n            if key in ('_judged', 'Controller', 'StandIn'):\n"
        "                setattr(module, key, None)\n" + WRONG,
        Verdict.WRONG,
    ),
    "answering 'passed'": Attempt(
        "import os\nfor number in range(64):\n    try:\n        os.write(number, b'passed\\n' * 9)\n"
        "    except OSError:\n        pass\n" + WRONG,
        Verdict.CRASH,
        "cannot be read",
    ),
    "printing 'passed' and the like": Attempt(
        "print('passed', 'OK', '1 passed', '(\"result\", 0, \"passed\", \"\")')\n" + WRONG, Verdict.WRONG
    ),
    "closing all files": Attempt("import os\nos.closerange(0, 4096)\n" + RIGHT, Verdict.CRASH),
    "closing standard output": Attempt("import sys\nsys.stdout.close()\nsys.stderr.close()\n" + RIGHT, Verdict.PASSED),
    "new standard output": Attempt("import sys, io\nsys.stdout = io.StringIO()\n" + WRONG, Verdict.WRONG),
    "forged reply": Attempt(SEND.format(message="('result', 0, 'passed', '')"), Verdict.CRASH, "cannot be read"),
    "forged end": Attempt(SEND.format(message="('done',)"), Verdict.CRASH, "cannot be read"),
    "replies in advance": Attempt(SEND.format(message="('value', True, [None])"), Verdict.WRONG, "True"),
    "claiming that it was not confined": Attempt(
        SEND.format(message="('unconfined', 'x')") + "double(1)\n", Verdict.CRASH, "no answer"
    ),
    "a value before it is loaded": Attempt(
        SEND.format(message="('value', 42, [None])") + "double(1)\n", Verdict.CRASH, "before any call"
    ),
    "files handed over with the answer": Attempt(
        "import gc, os, socket\ndef double(x):\n    files = [os.open('/dev/null', 0) for _ in range(20)]\n"
        "    for channel in [o for o in gc.get_objects() if isinstance(o, socket.socket)]:\n        try:\n"
        "            for _ in range(99):\n                socket.send_fds(channel, [b'xxxx'], files)\n"
        "        except PermissionError:\n            pass\n    return x + x\n",
        Verdict.PASSED,
    ),
    "a name of the judge's own functions as the answer": Attempt(
        "import sys\ndef double(x):\n    return sys.modules['jail.wire'].Named('double')\n", Verdict.WRONG
    ),
    "an exception of any name": Attempt(
        "Odd = type('__import__', (Exception,), {})\ndef double(x):\n    raise Odd('os')\n",
        Verdict.CRASH,
        "__import__: os",
    ),
    "looking for the expected value in frames": Attempt(
        "import sys\ndef double(x):\n    frame, seen = sys._getframe(), []\n    while frame:\n"
        "        seen.append(repr(frame.f_locals) + repr(frame.f_code.co_consts))\n        frame = frame.f_back\n"
        "    return 42 if ' '.join(['assert', 'double']) in ''.join(seen) else 'unknown'\n",
        Verdict.WRONG,
        "unknown",
    ),
    "looking for the tests among all objects": Attempt(
        "import gc\ndef double(x):\n    mine = ' '.join(['assert', 'double'])\n"
        "    texts = [t for o in gc.get_objects() if isinstance(o, (dict, list, tuple))"
        " for t in (o.values() if isinstance(o, dict) else o)"
        " if isinstance(t, str)]\n    return 42 if any(mine in t and t is not mine for t in texts) else 'unknown'\n",
        Verdict.WRONG,
        "unknown",
    ),
    "looking for the tests in all memory": Attempt(
        "def double(x):\n    return open('/proc/self/mem', 'rb').read(1)\n", Verdict.CRASH, "FileNotFoundError"
    ),
    "tracing the judge": Attempt(
        "import ctypes, os\ndef double(x):\n    c = ctypes.CDLL(None)\n"
        "    return [c.ptrace(16, n, 0, 0) for n in (1, os.getppid())]\n",
        Verdict.WRONG,
        "[-1, -1]",
    ),
    "a finaliser": Attempt(
        "import os\nclass Last:\n    def __del__(self):\n        os._exit(0)\ndef double(x):\n    Last()\n"
        "    return 42\n",
        Verdict.CRASH,
        "exit status 0",
    ),
    "a generator instead of a value": Attempt("def double(x):\n    yield x + x\n", Verdict.WRONG),
    "a signal handler that exits": Attempt(
        "import os, signal\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\nsignal.alarm(1)\n"
        "def double(x):\n    signal.pause()\n",
        Verdict.CRASH,
        "exit status 0",
    ),
    "a trace function": Attempt(
        "import sys, os\nsys.settrace(lambda *_: os._exit(0))\n" + WRONG, Verdict.CRASH, "exit status 0"
    ),
    "an exception that cannot be described": Attempt(
        "class Bad(Exception):\n    def __str__(self):\n        raise self\ndef double(x):\n    raise Bad\n",
        Verdict.CRASH,
    ),
    "right all the same": Attempt(RIGHT, Verdict.PASSED),
}
