"""Treadle's own few Java classes: compiled on first use with the JDK that is there, and kept with the other jars.

It knows compilers and jars, not what any class is for.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from treadle.errors import EngineError
from treadle.jars import home, java


def jar(name: str, sources: Path, *, path: str = "", key: str = "", manifest: str = "") -> Path:
    """The jar with the classes of a folder, compiled against a class `path` that is known by its `key`."""
    files = sorted(sources.glob("*.java"))
    sums = hashlib.sha256(key.encode() + manifest.encode())
    for source in files:
        sums.update(source.read_bytes())
    target = home() / "jars" / f"{name}-{sums.hexdigest()[:12]}.jar"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _compile(files, target, path, manifest)
    return target


def spark_jar(name: str, sources: Path, *, manifest: str = "") -> Path:
    """The same for classes that use Spark's: compiled against the PySpark that is here."""
    version = metadata.version("pyspark")  # which says so if there is none
    import pyspark

    path = f"{Path(pyspark.__file__).parent}/jars/*"
    return jar(name, sources, path=path, key=version, manifest=manifest)


def _compile(sources: Sequence[Path], target: Path, path: str, manifest: str) -> None:
    """Two processes that do so at once don't disturb each other."""
    compiler = shutil.which(str(Path(java()).resolve().parent / "javac"))
    if compiler is None:
        raise EngineError(
            "there is a java, but no javac beside it",
            where=java(),
            remedy="install a whole JDK 17 (Debian: openjdk-17-jdk-headless), not only the runtime",
        )
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        command = [compiler, "-nowarn", "-Xlint:none", "--release", "17", "-d", f"{work}/classes"]
        command += [*(["-cp", path] if path else []), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EngineError(
                f"could not be compiled: {done.stderr.strip()[-500:]}",
                where="Treadle's Java classes",
                remedy="use a JDK 17 and the PySpark that pip install 'treadle[spark]' brings",
            )
        with zipfile.ZipFile(f"{work}/treadle.jar", "w", zipfile.ZIP_DEFLATED) as archive:
            if manifest:
                archive.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\n{manifest}")
            for file in sorted(Path(work, "classes").rglob("*.class")):
                archive.write(file, file.relative_to(f"{work}/classes"))
        os.replace(f"{work}/treadle.jar", target)
