"""Jars that no Python package ships: pinned, fetched by the Ivy that PySpark ships, and checked byte for byte.

A bundle is a named set of jars: `bundles/<name>.xml` lists them, and `bundles/<name>.sha256` has their checksums. The
folder of a bundle is complete or absent, even while several processes fetch it. Jars are loaded into JVMs of other
users, so owner, mode and bytes of each jar are checked whenever it is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from xml.etree import ElementTree

from treadle.errors import ConfigError, EngineError, RightsError
from treadle.linux.files import trusted
from treadle.linux.files.file_lock import alone
from treadle.linux.files.open_files import is_readable

log = logging.getLogger("treadle.jars")

Progress = Callable[[str, float], None]
"""Called with the name of the current step, and the share of the step that is done (0 to 1)."""

OLDEST_JAVA = 17
SILENCE = 180.0
"""Seconds without output of Ivy after which the registry counts as unreachable (Ivy itself would wait for ever)."""


@dataclass(frozen=True)
class Bundle:
    """A named set of jars: Ivy's description of it, and the SHA-256 of each file."""

    name: str
    ivy: str
    sums: Mapping[str, str]

    @property
    def title(self) -> str:
        """What the bundle is for, in a few words."""
        return (ElementTree.fromstring(self.ivy).findtext("info/description") or "").strip()

    @property
    def key(self) -> str:
        """The name of the bundle's folder. It depends on the bundle's contents, so an upgrade never uses old jars."""
        pinned = self.ivy + "".join(f"{value}  {file}\n" for file, value in sorted(self.sums.items()))
        return f"{self.name}-{hashlib.sha256(pinned.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Jar:
    """A checked jar with the bytes that were checked; the file at `path` may have changed since."""

    path: Path
    contents: bytes

    @property
    def is_out_of_reach(self) -> bool:
        """Whether no other user can put other bytes at its path."""
        return trusted.is_out_of_reach(self.path)


def home() -> Path:
    """Return Treadle's cache folder: `$TREADLE_HOME`, `$XDG_CACHE_HOME/treadle` or `~/.cache/treadle`.

    The environment may be that of another user (`sudo -E`): a folder that another user could change is not used.
    Symbolic links in the path are resolved, since others could change them later.
    """
    if own := os.environ.get("TREADLE_HOME"):
        wanted = Path(own).expanduser().absolute()
        if why := _doubt(wanted):
            raise _refused(f"TREADLE_HOME={wanted}", why)
        return wanted.resolve()
    folder = os.environ.get("XDG_CACHE_HOME")
    # The XDG standard: a relative path must be ignored.
    wanted = (Path(folder) if folder and os.path.isabs(folder) else Path.home() / ".cache") / "treadle"
    why = _doubt(wanted)
    return _own_home(why) if why else wanted.resolve()


@cache
def _own_home(reason: str) -> Path:
    """Return the cache folder in the home of this process's user, as the configured one is not trusted; logged once."""
    try:
        own = Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".cache" / "treadle"
    except KeyError:
        raise _refused("", reason) from None
    if why := _doubt(own):
        raise _refused(str(own), why)
    log.info("%s; jars are kept in %s", reason, own)
    return own.resolve()


def _doubt(cache_folder: Path) -> str:
    """Return why another user could change files that are used from this cache; empty if none can."""
    return trusted.doubt(cache_folder / "jars") or trusted.doubt(cache_folder / "agents")


def _refused(where: str, why: str) -> ConfigError:
    return ConfigError(
        f"jars from there are not trusted: {why}",
        where=where,
        remedy="set TREADLE_HOME to a folder that only you can change",
    )


def names() -> list[str]:
    """Return the names of all bundles."""
    return sorted(file.name.removesuffix(".xml") for file in _data().iterdir() if file.name.endswith(".xml"))


def bundle(name: str) -> Bundle:
    """Return the bundle of this name."""
    if name not in names():
        raise ConfigError(f"no bundle of jars is called {name!r}", remedy=f"there are: {', '.join(names())}")
    table = (_data() / f"{name}.sha256").read_text("utf-8")
    sums = {file: value for value, file in (line.split() for line in table.splitlines())}
    return Bundle(name, (_data() / f"{name}.xml").read_text("utf-8"), sums)


def folder(wanted: str | Bundle) -> Path:
    """Return the folder where the jars of this bundle are, or will be once fetched."""
    return home() / "jars" / (wanted if isinstance(wanted, Bundle) else bundle(wanted)).key


def fetched(name: str) -> list[Jar]:
    """Check the jars of a fetched bundle again, and return them."""
    known = bundle(name)
    if not folder(known).is_dir():
        raise EngineError(f"the jars of {name!r} are not fetched yet", remedy=f"treadle jars {name}")
    return _kept(known)


def paths(name: str) -> list[Path]:
    """Check the jars of a fetched bundle again, and return only their paths, for a JVM of this user."""
    return [jar.path for jar in fetched(name)]


def fetch(*wanted: str | Bundle, progress: Progress | None = None) -> dict[str, Path]:
    """Fetch these bundles, and return the folder of each by name. A bundle that was fetched before is only checked."""
    tell = progress or _untold
    found: dict[str, Path] = {}
    for known in [item if isinstance(item, Bundle) else bundle(item) for item in wanted]:
        target = found[known.name] = folder(known)
        if target.is_dir():
            _kept(known)
            continue
        try:
            with _alone(known.name, target.parent, tell):
                if not target.is_dir():
                    _fetch(known, target, tell)
        except OSError as error:
            raise ConfigError(
                f"can't keep jars there: {error.strerror or error}",
                where=str(target.parent),
                remedy="set TREADLE_HOME to a folder you may write, with room in it",
            ) from error
    return found


def java() -> str:
    """Return the `java` to run: that of `JAVA_HOME`, else the first on the PATH; at least version 17."""
    remedy = f"install a JDK {OLDEST_JAVA} or newer, and set JAVA_HOME or PATH"
    place = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(place, "bin", "java")) if place else "java")
    if program is None:
        raise EngineError("no java found", where=f"JAVA_HOME={place}" if place else "PATH", remedy=remedy)
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"java does not run: {error}", where=program, remedy=remedy) from error
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < OLDEST_JAVA:
        what = f"this is Java {version[1]}" if version else "java does not print its version"
        raise EngineError(what, where=program, remedy=remedy)
    return program


def _data() -> Traversable:
    return resources.files("treadle") / "bundles"


def _untold(what: str, part: float) -> None:
    """Ignore progress."""


@contextmanager
def _alone(name: str, place: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock with which one process at a time fetches a bundle. The lock ends even if the process is killed."""
    trusted.make_folder(place)
    with alone(place / f".{name}.lock", lambda: progress(f"jars: {name}, waiting for another process", 0.0)):
        yield


def _fetch(known: Bundle, target: Path, progress: Progress) -> None:
    for left_behind in target.parent.glob(f".tmp-{known.name}-*"):
        shutil.rmtree(left_behind, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".tmp-{known.name}-", dir=target.parent))
    try:
        (work / "ivy.xml").write_text(known.ivy, "utf-8")
        said = _run_ivy(known, work, progress)
        _check(known, work / "lib", said)
        (work / "lib").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_ivy(known: Bundle, work: Path, progress: Progress) -> str:
    """Run Ivy, which puts the jars into `work/lib`, and return its output. Ivy gets a new, empty cache."""
    command = [java(), "-jar", str(_ivy()), "-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml")]
    command += ["-retrieve", str(work / "lib" / "[artifact]-[revision](-[classifier]).[ext]")]
    if settings := os.environ.get("TREADLE_IVY_SETTINGS"):
        if not Path(settings).is_file():
            raise ConfigError(
                "no such file", where=f"TREADLE_IVY_SETTINGS={settings}", remedy="name a file of Ivy settings"
            )
        command += ["-settings", str(Path(settings).absolute())]
    progress(f"jars: {known.name}", 0.0)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=work
    ) as ivy:
        try:
            said = _listen(ivy, known, progress)
        finally:
            ivy.kill()
    if ivy.returncode != 0:
        raise _failure(known, said)
    return said


def _listen(ivy: subprocess.Popen[bytes], known: Bundle, progress: Progress) -> str:
    assert ivy.stdout is not None
    said, told = b"", 0
    while is_readable(ivy.stdout.fileno(), SILENCE):
        some = os.read(ivy.stdout.fileno(), 65536)
        if not some:
            ivy.wait()
            return said.decode(errors="replace")
        said += some
        # Each jar is first found (its description is read), then downloaded; the finding takes about twice as long.
        steps = 2 * said.count(b"\tfound ") + said.count(b"[SUCCESSFUL ]")
        if steps > told:
            told = steps
            progress(f"jars: {known.name}", min(1.0, steps / (3 * len(known.sums))))
    raise _failure(known, said.decode(errors="replace"), silent=True)


def _ivy() -> Path:
    """Return the path of the Ivy that PySpark ships, without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EngineError("PySpark is not installed, and its Ivy fetches jars", remedy="pip install 'treadle[spark]'")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not found:
        raise EngineError(
            "this PySpark ships no Ivy",
            where=str(Path(spec.origin).parent),
            remedy="pip install --force-reinstall 'treadle[spark]'",
        )
    return found[-1]


def _failure(known: Bundle, said: str, *, silent: bool = False) -> EngineError:
    """Return the error for a failed run of Ivy: its output `said`, reduced to the jar and the reason."""
    missing = re.findall(r":: ([\w.\-]+)#([\w.\-]+);([\w.\-]+): ", said)
    missing += re.findall(r"\[FAILED +\] ([\w.\-]+)#([\w.\-]+);([\w.\-]+)!", said)
    which = ", ".join(dict.fromkeys(":".join(parts) for parts in missing))
    unreachable = re.search(r"java\.net\.\w+: ([^)\n]+)|Host \S+ (not found)|(timed out)", said)
    if silent or unreachable:
        why = (
            f"no output for {SILENCE:.0f} s" if silent or not unreachable else next(filter(None, unreachable.groups()))
        )
        return EngineError(
            f"the registry can't be reached ({why}) for {which or 'any jar'}",
            where=f"jars {known.name}",
            remedy="check the network; behind a proxy set JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=… -Dhttps.proxyPort=…, "
            "for a mirror set TREADLE_IVY_SETTINGS to a file of Ivy settings",
        )
    if which:
        return EngineError(
            f"the registry does not have {which}",
            where=f"jars {known.name}",
            remedy="set TREADLE_IVY_SETTINGS to a file of Ivy settings that names one which does",
        )
    last = next((line.strip() for line in said.splitlines() if "xception" in line or "rror" in line), said[-300:])
    return EngineError(f"Ivy failed: {last}", where=f"jars {known.name}", remedy="try again")


def _check(known: Bundle, place: Path, said: str) -> None:
    """Raise an error unless these are exactly the pinned files with the pinned bytes; make them readable to all."""
    came = {file.name: file.read_bytes() for file in place.iterdir()} if place.is_dir() else {}
    if known.sums.keys() - came.keys() and "[FAILED" in said:
        raise _failure(known, said)
    if problem := _problem(known, came):
        raise _tampered(known, problem)
    for name in came:
        (place / name).chmod(0o644)
    place.chmod(0o755)


def _kept(known: Bundle) -> list[Jar]:
    """Return the jars of a bundle; raise an error unless they are still the pinned ones, in files that we trust."""
    place = folder(known)
    if why := trusted.doubt(place):
        raise RightsError(why, where=str(place), remedy=f"rm -r '{place}' and treadle jars {known.name}")
    found = {file.name: trusted.read(file) for file in place.iterdir()}
    if problem := _problem(known, found):
        remedy = f"find out what changed the folder; then rm -r '{place}' and treadle jars {known.name}"
        raise EngineError(problem, where=str(place), remedy=remedy)
    return [Jar(place / name, found[name]) for name in sorted(found)]


def _problem(known: Bundle, found: Mapping[str, bytes]) -> str:
    """Return how these files differ from the pinned ones; empty if they don't."""
    if surplus := sorted(found.keys() - known.sums.keys()):
        return f"unexpected files: {', '.join(surplus)}"
    if lacking := sorted(known.sums.keys() - found.keys()):
        return f"missing files: {', '.join(lacking)}"
    for name, contents in found.items():
        got = hashlib.sha256(contents).hexdigest()
        if got != known.sums[name]:
            return f"{name} has SHA-256 {got}, not {known.sums[name]}"
    return ""


def _tampered(known: Bundle, what: str) -> EngineError:
    return EngineError(
        f"{what}; nothing was kept", where=f"jars {known.name}", remedy="don't trust this registry or mirror"
    )
