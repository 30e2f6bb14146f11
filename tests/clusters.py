"""Daemons of a standalone Spark cluster on this machine, for tests that need one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from treadle import jars

_OPENS = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    """A master or a worker, for as long as the block lasts."""
    import pyspark

    home = Path(pyspark.__file__).parent
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS]
    command = [jars.java(), "-Xmx256m", *opens, "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{name}"]
    command += ["--host", "127.0.0.1", "--webui-port", "0", *arguments]
    settings = {**environment(), "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}
    with (folder / "daemons.log").open("ab") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=settings)
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(30)


def environment() -> dict[str, str]:
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
