"""Nobody but Spark's own JVM may call into Python."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from support import LONG
from treadle.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTRUDER = """
import encodings.idna, os, socket, sys
os.setgid(65534)
os.setuid(65534)
made = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60)
try:
    made.sendall(sys.argv[2].encode())
    made.shutdown(socket.SHUT_WR)
    print(made.recv(1000))
except TimeoutError:
    raise
except OSError as error:  # the other side may end the connection at any of these
    print(error)
"""


class Called:
    """An object that Java may call."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def run(self) -> None:
        self.event.set()

    class Java:
        """How py4j knows what it is."""

        implements = ("java.lang.Runnable",)


def test_another_user_can_not_call_python_objects_but_the_jvm_can(spark: SparkSession) -> None:
    loaded = jvm.load(spark)
    gateway: Any = spark.sparkContext._gateway
    port = gateway.get_callback_server().get_listening_port()
    secret = Called()
    name = gateway.gateway_property.pool.put(secret)
    call = f"c\n{name}\nrun\ne\n"
    for said in (call, f"A\nguess\n{call}", f"g\n{name}\ne\n"):
        command = [sys.executable, "-c", INTRUDER, str(port), said]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
        assert "!y" not in done.stdout, "a call that was carried out"
        assert done.returncode == 0, done.stderr
    assert not secret.event.is_set()
    assert name in gateway.gateway_property.pool
    called = Called()
    loaded.java.lang.Thread(called).start()  # of a thread that has no connection yet
    assert called.event.wait(LONG)
    jvm.load(spark)  # another run in the same session has nothing to change
    again = Called()
    loaded.java.lang.Thread(again).start()
    assert again.event.wait(LONG)
