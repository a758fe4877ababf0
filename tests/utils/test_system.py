"""Memory that is free: on the machine, and under the limits of control groups."""

import pytest

from offpcc.utils.system import available_bytes

GIB = 2**30


@pytest.fixture
def system(tmp_path):
    """Write the files that a system tells its memory by; what is free there."""

    def write(cgroup, files, free=8 * GIB):
        proc, groups = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True, exist_ok=True)
        groups.mkdir(exist_ok=True)
        if free is not None:
            (proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {free // 1024} kB\n")
        if cgroup is not None:
            (proc / "self" / "cgroup").write_text(cgroup)
        for name, content in files.items():
            (groups / name).parent.mkdir(parents=True, exist_ok=True)
            (groups / name).write_text(f"{content}\n")
        return available_bytes(proc, groups)

    return write


def group(folder, limit, used, cached=0, version=2):
    """The files of a control group."""
    if version == 2:
        stat = f"anon 5\ninactive_file {cached}\nactive_file 0"
        return {f"{folder}memory.max": limit, f"{folder}memory.current": used, f"{folder}memory.stat": stat}
    stat = f"inactive_file 7\ntotal_inactive_file 0\ntotal_active_file {cached}"
    names = ("limit_in_bytes", "usage_in_bytes", "stat")
    return {f"memory/{folder}memory.{name}": value for name, value in zip(names, (limit, used, stat), strict=True)}


def test_here_it_is_told():
    assert available_bytes() is None or available_bytes() > 0


@pytest.mark.parametrize("cgroup", [None, "", "0::/\n", "nonsense\n", "4:memory:/\n", "0::/../..\n"])
def test_without_limits_the_machine_tells(system, cgroup):
    assert system(cgroup, {}) == 8 * GIB


def test_nothing_is_told_where_the_system_tells_nothing(system):
    assert system(None, {}, free=None) is None


def test_the_limit_of_a_container_of_version_2(system):
    assert system("0::/\n", group("", 2 * GIB, GIB, GIB // 4)) == GIB + GIB // 4


def test_the_limit_of_a_container_of_version_1(system):
    """Whose path is that outside, which cannot be seen in it."""
    files = group("", 2 * GIB, GIB, GIB // 4, version=1)
    assert system("9:cpu:/docker/ab\n4:hugetlb,memory:/docker/ab\n", files) == GIB + GIB // 4


def test_the_narrowest_of_nested_groups_counts(system):
    files = group("", "max", GIB) | group("slurm/", 3 * GIB, GIB) | group("slurm/job/", 4 * GIB, GIB // 2)
    assert system("0::/slurm/job\n", files) == 2 * GIB
    files |= group("slurm/job/", GIB, GIB // 2)
    assert system("0::/slurm/job\n", files) == GIB // 2


def test_without_a_limit_in_its_groups_the_machine_tells(system):
    assert system("0::/\n", group("", "max", GIB)) == 8 * GIB
    assert system("4:memory:/\n", group("", 9223372036854771712, GIB, version=1)) == 8 * GIB


def test_both_versions_side_by_side(system):
    files = group("", 5 * GIB, GIB, version=1) | group("unified/", 4 * GIB, GIB)
    assert system("4:memory:/\n0::/\n", files) == 3 * GIB


def test_a_group_over_its_limit_leaves_nothing(system):
    assert system("0::/\n", group("", GIB, 2 * GIB)) == 0


def test_a_wider_limit_than_the_machine_changes_nothing(system):
    assert system("0::/\n", group("", 64 * GIB, GIB)) == 8 * GIB


def test_without_a_machine_the_limit_is_told(system):
    assert system("0::/\n", group("", 4 * GIB, GIB), free=None) == 3 * GIB
