"""Access to a running JVM without any preparation in it: threads with names and native ids, and MBeans.

It implements HotSpot's attach protocol in Python, so a request takes a millisecond and starts no process.
"""

from treadle.jvm.attach import Jvm, execute, find, look
from treadle.jvm.dump import JavaThread, dump
from treadle.jvm.mbeans import MBeans, NoAgentError

__all__ = ["JavaThread", "Jvm", "MBeans", "NoAgentError", "dump", "execute", "find", "look"]
