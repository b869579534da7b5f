"""Tests of the memory that a process may still take."""

from pathlib import Path

from retroformer.files.available_memory import available_memory

GIB = 1024**3


def machine(root: Path, groups: str = "") -> Path:
    """Write the files of a machine with 8 GiB available, whose process is in these control groups."""
    for folder in ("proc/self", "sys/fs/cgroup"):
        (root / folder).mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 16777216 kB\nMemFree: 1024 kB\nMemAvailable: 8388608 kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    return root


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_without_groups_it_is_what_the_machine_has() -> None:
    available = available_memory()
    assert available is None or 0 < available < 2**50


def test_a_machine_without_proc_does_not_know(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


def test_a_group_without_a_limit_does_not_count(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/app\n9:name=systemd:/\n")
    group(root / "sys/fs/cgroup/app", memory__max="max\n", memory__current="5", memory__stat="inactive_file 1\n")
    assert available_memory(root) == 8 * GIB


def test_the_smallest_rest_of_all_groups_counts_with_their_caches(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/outer/inner\n")
    outer = root / "sys/fs/cgroup/outer"
    group(outer, memory__max=f"{4 * GIB}\n", memory__current=f"{3 * GIB}\n", memory__stat=f"inactive_file {GIB}\n")
    group(outer / "inner", memory__max=f"{3 * GIB}\n", memory__current="0\n", memory__stat="anon 0\n")
    assert available_memory(root) == 2 * GIB
    group(outer / "inner", memory__current=f"{4 * GIB}\n")
    assert available_memory(root) == 0


def test_in_a_container_the_limit_at_the_top_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/not/visible/here\n")
    group(root / "sys/fs/cgroup", memory__max=f"{GIB}\n", memory__current="0\n", memory__stat="inactive_file 0\n")
    assert available_memory(root) == GIB
