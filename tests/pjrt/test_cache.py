"""The persistent program cache: hits, damage, limits, and several processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from torchtpu_core import cache as cache_module
from torchtpu_core.cache import ProgramCache

KEY = ProgramCache.key("plugin", b"options", "program")
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path: Path) -> ProgramCache:
    return ProgramCache(tmp_path / "cache", 10**6)


def entry(cache: ProgramCache, key: str = KEY) -> Path:
    return cache.folder / f"{key}.program"


def keys(n: int) -> list[str]:
    return [ProgramCache.key("plugin", b"", str(i)) for i in range(n)]


def test_miss_put_hit(cache: ProgramCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, b"payload")
    assert cache.get(KEY) == b"payload"
    assert ProgramCache(cache.folder, cache.size).get(KEY) == b"payload"
    assert (cache.stats.hits, cache.stats.misses, cache.stats.puts) == (1, 1, 1)


def test_key_depends_on_every_part_and_their_borders() -> None:
    made = {
        ProgramCache.key("plugin", b"options", "program"),
        ProgramCache.key("plugin2", b"options", "program"),
        ProgramCache.key("plugin", b"options2", "program"),
        ProgramCache.key("plugin", b"options", "program2"),
        ProgramCache.key("plugino", b"ptions", "program"),
    }
    assert len(made) == 5
    assert ProgramCache.key("p", b"o", "text") == ProgramCache.key("p", b"o", b"text")


@pytest.mark.parametrize("key", [b"\x00\xff", "../../escape", "a/b"])
def test_any_key_stays_in_the_folder(cache: ProgramCache, key: str | bytes) -> None:
    cache.put(key, b"x")
    assert cache.get(key) == b"x"
    assert len(list(cache.folder.iterdir())) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"another program's file entirely, of some length or other" * 3,
        lambda data: data[:8] + b"\x63" + data[9:],  # another format
    ],
    ids=["empty", "header", "short", "long", "flipped", "foreign", "format"],
)
def test_damaged_entry_is_a_miss_and_goes(cache: ProgramCache, damage: object) -> None:
    cache.put(KEY, b"payload")
    path = entry(cache)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert cache.get(KEY) is None
    assert not path.exists()
    assert cache.stats.corrupt == 1
    cache.put(KEY, b"payload")
    assert cache.get(KEY) == b"payload"


def test_size_limit_evicts_the_least_recently_used(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path, 10_000)
    names = keys(9)
    for i, key in enumerate(names):
        cache.put(key, bytes(1000))
        old = time.time() - 1000 + i
        os.utime(entry(cache, key), (old, old))
    assert cache.get(names[0]) is not None  # now the most recently used
    last = ProgramCache.key("plugin", b"", "last")
    cache.put(last, bytes(1000))
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 10_000
    assert cache.get(names[1]) is None
    assert cache.get(names[0]) is not None
    assert cache.get(last) is not None
    assert cache.stats.evicted >= 1


def test_limit_holds_over_many_puts(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path, 20_000)
    for key in keys(200):
        cache.put(key, bytes(900))
        assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 20_000


def test_payload_above_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path, 1000)
    cache.put(KEY, bytes(1000))
    assert cache.get(KEY) is None


def test_size_zero_touches_nothing(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path / "cache", 0)
    cache.put(KEY, b"payload")
    assert cache.get(KEY) is None
    assert not cache.folder.exists()


def test_stale_temporary_files_go(tmp_path: Path) -> None:
    stale, young = tmp_path / ".dead.tmp", tmp_path / ".alive.tmp"
    for path in (stale, young):
        path.write_bytes(b"half")
    os.utime(stale, (0, 0))
    ProgramCache(tmp_path, 10**6).put(KEY, b"payload")
    assert not stale.exists() and young.exists()


def test_folder_that_cannot_be_made_disables_writing(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    cache = ProgramCache(blocker / "cache", 10**6)
    assert cache.get(KEY) is None
    cache.put(KEY, b"payload")
    errors = cache.stats.errors
    assert errors >= 1
    cache.put(KEY, b"payload")
    assert cache.stats.errors == errors


def test_entry_that_cannot_be_read_is_a_miss(cache: ProgramCache) -> None:
    entry(cache).mkdir(parents=True)
    assert cache.get(KEY) is None
    cache.put(KEY, b"payload")
    assert cache.get(KEY) is None
    assert cache.stats.errors >= 2


def test_concurrent_processes(tmp_path: Path) -> None:
    """Writers of the same keys, with eviction going on: every read is a whole payload or a miss."""
    code = textwrap.dedent(f"""
        import random, sys
        from torchtpu_core.cache import ProgramCache
        cache = ProgramCache({str(tmp_path / "cache")!r}, 60_000)
        names = [ProgramCache.key("p", b"", str(i)) for i in range(20)]
        payloads = [bytes([i]) * (1000 + 300 * i) for i in range(20)]
        rng = random.Random(int(sys.argv[1]))
        for _ in range(200):
            i = rng.randrange(20)
            got = cache.get(names[i])
            assert got is None or got == payloads[i]
            if got is None or rng.random() < 0.3:
                cache.put(names[i], payloads[i])
        assert cache.stats.corrupt == cache.stats.errors == 0, cache.stats
        assert cache.stats.hits > 0 and cache.stats.puts > 0
    """)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(seed)],
            cwd=_ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    try:
        for worker in workers:
            _, stderr = worker.communicate(timeout=600)
            assert worker.returncode == 0, stderr
    finally:
        for worker in workers:
            worker.kill()


@pytest.mark.usefixtures("fresh_config")
def test_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: ProgramCache
) -> None:
    monkeypatch.setenv("TORCHTPU_LOG", "cache")
    cache.get(KEY)
    cache.put(KEY, b"payload")
    cache.get(KEY)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == ["miss", "put", "hit"]


@pytest.mark.usefixtures("fresh_config")
def test_default_cache_is_the_environment_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHTPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHTPU_CACHE_SIZE", "5MB")
    made = cache_module.default_cache.__wrapped__()
    assert (made.folder, made.size) == (tmp_path, 5_000_000)
