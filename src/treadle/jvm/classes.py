"""Treadle's own Java classes: compiled on first use with the installed JDK, and stored with the other jars.

A jar's file name has two checksums: one of the sources, to find the jar, and one of the jar, which is checked at each
use.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from treadle.errors import EngineError, RightsError
from treadle.jars import Jar, home, java
from treadle.linux.files import trusted


def jar(name: str, sources: Path, *, path: str = "", key: str = "", manifest: str = "") -> Jar:
    """The jar with the compiled classes of the folder `sources`.

    `path` is the class path for the compiler, and `key` the version of the classes on this path.
    """
    files = sorted(sources.glob("*.java"))
    sums = hashlib.sha256(key.encode() + manifest.encode())
    for source in files:
        sums.update(source.read_bytes())
    folder, begin = home() / "jars", f"{name}-{sums.hexdigest()[:12]}"
    trusted.make_folder(folder)
    return _kept(folder, begin) or _compile(files, folder, begin, path, manifest)


def spark_jar(name: str, sources: Path, *, manifest: str = "") -> Jar:
    """As `jar`, for classes that use Spark's classes: they are compiled against the installed PySpark."""
    version = metadata.version("pyspark")  # raises an error that says so if PySpark is missing
    import pyspark

    path = f"{Path(pyspark.__file__).parent}/jars/*"
    return jar(name, sources, path=path, key=version, manifest=manifest)


def _kept(folder: Path, begin: str) -> Jar | None:
    """A jar that was compiled before and is unchanged. Changed files are not used and not removed."""
    for path in folder.glob(f"{begin}-*.jar"):
        with suppress(RightsError):
            contents = trusted.read(path)
            if path.name == _file_name(begin, contents):
                return Jar(path, contents)
    return None


def _file_name(begin: str, contents: bytes) -> str:
    return f"{begin}-{hashlib.sha256(contents).hexdigest()}.jar"


def _compile(sources: Sequence[Path], folder: Path, begin: str, path: str, manifest: str) -> Jar:
    """Compile in a temporary folder and then rename the jar, so that two processes may compile at once."""
    compiler = shutil.which(str(Path(java()).resolve().parent / "javac"))
    if compiler is None:
        raise EngineError(
            "there is a java, but no javac beside it",
            where=java(),
            remedy="install a whole JDK 17 (Debian: openjdk-17-jdk-headless), not only the runtime",
        )
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [compiler, "-nowarn", "-Xlint:none", "--release", "17", "-d", f"{work}/classes"]
        command += [*(["-cp", path] if path else []), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EngineError(
                f"could not be compiled: {done.stderr.strip()[-500:]}",
                where="Treadle's Java classes",
                remedy="use a JDK 17 and the PySpark that pip install 'treadle[spark]' brings",
            )
        contents = _archive(Path(work, "classes"), manifest)
        draft, target = Path(work, "treadle.jar"), folder / _file_name(begin, contents)
        draft.write_bytes(contents)
        draft.chmod(0o644)
        os.replace(draft, target)
    return Jar(target, contents)


def _archive(classes: Path, manifest: str) -> bytes:
    """The bytes of a jar, which depend only on the classes and the manifest, not on the time."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        if manifest:
            archive.writestr(_entry("META-INF/MANIFEST.MF"), f"Manifest-Version: 1.0\n{manifest}")
        for file in sorted(classes.rglob("*.class")):
            archive.writestr(_entry(str(file.relative_to(classes))), file.read_bytes())
    return made.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)  # its default date is 1980-01-01, not now
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry
