"""Looking into a running JVM that nobody prepared for it: its threads by name and native id, and its MBeans.

HotSpot's own attach protocol in Python, so that a look costs a millisecond and no process is started.
"""

from treadle.jvm.attach import Jvm, execute, find, look
from treadle.jvm.dump import JavaThread, dump
from treadle.jvm.mbeans import MBeans, NoAgentError

__all__ = ["JavaThread", "Jvm", "MBeans", "NoAgentError", "dump", "execute", "find", "look"]
